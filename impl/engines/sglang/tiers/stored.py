"""kv_scheduler with two tiers on SGLang's Scheduler (0.5.23): its host tier, and a storage behind it, on CPU.

The scheduler is driven as in scheduler.py, the tiers are those of hicache.py and storage.py. A page that has landed on
the host is written to the storage (`write_backup_storage`). When a request arrives, or comes back, the engine asks the
storage for what neither pool nor host has (`_prefetch_kvcache`), takes host pages for it and reads. In each pass it
looks whether that is over (`check_prefetch_progress`). Until then the request stands in the queue and holds nothing, so
those behind it start; how long it waits, `--hicache-storage-prefetch-policy` says. Then it loads what the host has.

A pass in which the engine only asks, or has just been answered, is followed by the next one at once, as in its loop.
There is no reset: it retracts the requests, which ask the storage again, and is refused while they wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.hicache import HOST
from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler, HierarchicalScheduler
from kvlockstep.impl.engines.sglang.tiers.page_storage import STORAGE, Storage
from kvlockstep.impl.engines.sglang.tiers.storage import CLOCK, StoredTier, WaitingTier, WithStorage
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Batch

# How many batches may stay empty for a request that waits, by the engine's policy: it looks before each of them.
PATIENCE = {"best_effort": 0, "wait_complete": None, "timeout": 2}


class AskingScheduler(DrainingScheduler):
    """Remembers whom a pass has left out, since the pool has lost what the storage was asked behind."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.left_out: set[str] = set()

    def _prefetch_after_device_hit_loss(self, req: Any) -> bool:
        left_out = bool(super()._prefetch_after_device_hit_loss(req))
        self.left_out.update([req.rid] if left_out else ())
        return left_out


class StoringScheduler(WithStorage, HierarchicalScheduler):
    """A Scheduler with a host tier as large as the pool, and a storage that is twice as large.

    `policy` is one of the engine's; `batch` are the pages that are read in one go.
    """

    _kind = AskingScheduler
    tier_type: Callable[..., StoredTier] = StoredTier
    partial_loads = looks_up = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        policy: str = "wait_complete",
        write_policy: str = "write_through",
        batch: int = 128,
        tier: Callable[..., StoredTier] | None = None,
        **options: Any,
    ) -> None:
        self._tier = tier or self.tier_type
        self._storing = policy, batch
        super().__init__(blocks, block_size, budget, running, write_policy, **options)
        self.can_reset = False
        self.patience = PATIENCE[policy]
        self.tiers[STORAGE] = self._host.storage.size
        self._scheduler.enable_hicache_storage = True

    def _make_host(self, write_policy: str) -> StoredTier:
        pages = self.tiers[HOST]
        given = pages, self.block_size, write_policy, Storage(2 * pages), *self._storing
        return self._tier(self._tree, self._allocator, *given)

    def _decide(self) -> tuple[Batch, int]:
        preempted, controller = list[str](), self._host.controller
        while True:
            CLOCK.now += 1
            self._scheduler.left_out.clear()
            self._host.given_up.clear()
            batch, last = super()._decide()
            preempted += batch.preempted
            controller.run_threads()
            goes_on = controller.answers or self._scheduler.left_out or self._has_room()
            if batch.items or self._scheduler.result_queue or not goes_on:
                return batch._replace(preempted=preempted), last
            self._launched.pop()

    def _has_room(self) -> bool:
        """True if the next pass can do what this one had no room for."""
        return False

    def looking_up(self) -> set[str]:
        """Those left out, and those who wait for what the storage has, be it an answer that the next pass hears.

        Those whose fetch was given up in the pass were waiting when their turn came.
        """
        asked = {handle.rid for handle in self._tree.ongoing_prefetch} | self._host.given_up
        return {rid.removesuffix(";") for rid in asked | self._scheduler.left_out}

    def hear(self) -> None:
        """A pass without a batch."""
        CLOCK.now += 1
        self._scheduler._process_hicache_events()

    def transfers(self) -> Sequence[Transfer]:
        return [
            one._replace(rids=[rid.removesuffix(";") for rid in one.rids]) if one.kind == "move" else one
            for one in super().transfers()
        ]

    def complete(self, id: Hashable, ok: bool, written: int = 0) -> None:
        if id in self._host.controller.moving:
            self._host.controller.end(id, written)
        else:
            super().complete(id, ok)


make = partial(StoringScheduler, overlap=True)
make_normal = StoringScheduler
make_best_effort = partial(StoringScheduler, overlap=True, policy="best_effort", batch=1)
make_timeout = partial(StoringScheduler, overlap=True, policy="timeout", batch=1)
make_selective = partial(StoringScheduler, overlap=True, write_policy="write_through_selective")
make_back = partial(StoringScheduler, overlap=True, write_policy="write_back", tier=WaitingTier)
make_rust = partial(make_timeout, core="rust")
make_back_rust = partial(make_timeout, core="rust", write_policy="write_back", tier=WaitingTier)
make_back_unwaited = partial(StoringScheduler, overlap=True, write_policy="write_back")
