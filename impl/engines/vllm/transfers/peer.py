"""vLLM (0.33.0) beside another instance: prefill on one, decode on the other.

As a producer it stores what a request has computed when that has ended by itself; the request keeps its blocks until
`finished_sending` names it. As a consumer it finds blocks that the other instance has offered, by their hash, and loads
them between the batches. Source: vllm/distributed/kv_transfer/kv_connector/v1/base.py; `Scheduler._connector_finished`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.vllm import modules as vllm
from kvlockstep.impl.engines.vllm.transfers.connector import TIER, TierConnector, TierScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.peered import SharedTier

# What is stored is kept, or being read, or loaded from: each of these in no more units than the pool has blocks.
UNITS_PER_BLOCK = 4


class PeerConnector(TierConnector):
    """A connector whose tier others fill, too."""

    tier: SharedTier

    def __init__(self, units: int, block_size: int, transfer_config: Any) -> None:
        super().__init__(units, block_size, False, True, transfer_config)
        self.tier = SharedTier(units)

    def reset_cache(self) -> bool:
        self.tier = SharedTier(self._units)
        return True


class PeerScheduler(TierScheduler):
    """A scheduler with a PeerConnector."""

    peer = TIER
    loses = durable = True
    _connector: PeerConnector

    def __init__(self, blocks: int, block_size: int, budget: int, running: int, **options: Any) -> None:
        super().__init__(blocks, block_size, budget, running, **options)
        self.tiers = {TIER: UNITS_PER_BLOCK * blocks}
        # What a reset has preempted: the engine names it in its next step, when it may already wait for a load.
        self._sent_back: set[str] = set()

    def connect(self, config: Any) -> PeerConnector:
        units = UNITS_PER_BLOCK * self.blocks
        self._connector = PeerConnector(units, self.block_size, config.kv_transfer_config)
        return self._connector

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        batch = super().schedule(accepted)
        sent_back, self._sent_back = self._sent_back, set()
        return batch._replace(preempted=[rid for rid in batch.preempted if rid not in sent_back])

    def poll(self) -> Collection[str]:
        self._sent_back.clear()
        return super().poll()

    def reset(self) -> None:
        super().reset()
        self._sent_back = set(self._scheduler.reset_preempted_req_ids)

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
        request = vllm.make_request("offered", tokens, self._hasher, extra_key, False)
        return [self._connector.tier.receive(key) for key in request.block_hashes]


make = PeerScheduler
make_failing = partial(PeerScheduler, policy_on_failure="fail")
make_async = partial(PeerScheduler, asynchronous=True)
make_reserving = partial(PeerScheduler, unreserved=False)
