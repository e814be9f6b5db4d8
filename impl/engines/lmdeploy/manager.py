"""kv_manager on the paging of LMDeploy's PyTorch engine (0.16): Scheduler, block manager and prefix trie, on CPU.

Calls come in the order of the engine's own loop: a waiting request goes through the scheduler's admission attempt
(match, evict, allocate, publish, roll back), later chunks through `reserve_long_context_chunk`, decodes through the
steps of `schedule_running`. Full blocks are published when blocks are allocated, a prompt's before they are computed.
A preempted request waits with its blocks until another one needs them. An ended session frees everything. The room that
the engine allocates ahead for output (`prefill_interval`, 16) is 0 unless `ahead` says otherwise. Source:
lmdeploy/pytorch/paging/scheduler.py and lmdeploy/pytorch/engine/inputs_maker.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from kvlockstep.impl.engines.lmdeploy.get import GET
from kvlockstep.impl.engines.loading import find, without_the_rest
from kvlockstep.impl.slots import slots_of

BARE = ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.strategies", "lmdeploy.pytorch.strategies.ar")
STUBS = ("lmdeploy.pytorch.disagg", "lmdeploy.pytorch.engine", "lmdeploy.pytorch.model_inputs")

ENGINE = find(
    "lmdeploy",
    "pytorch/paging/block_trie/kv_lifecycle.py",
    GET,
)

with without_the_rest(ENGINE, BARE, STUBS):
    paging, config, messages, strategy = (
        importlib.import_module(f"lmdeploy.pytorch.{name}")
        for name in ("paging.scheduler", "config", "messages", "strategies.ar.sequence")
    )

MAX_BATCHES = 64
UNLIMITED = 1 << 20


class LmdeployKVManager:
    """One Scheduler with `blocks` GPU blocks, prefix caching and room for `ahead` tokens of output at each allocation.

    `cache` are further settings of the engine's CacheConfig.

    An extra key is a LoRA adapter's name. A preempted request that has a full block unpublished, or that is between the
    chunks of its prompt, where the engine never preempts, would be resumed in the wrong place (known.toml):
    here the one publishes what it has computed, and the other gives its blocks back, unless `as_is`.
    """

    engine = "lmdeploy"
    version = ENGINE.version
    chunk = extra_key = early_publish = True
    tokens_per_decode = 1
    hash_trust = "tokens+parent"

    def __init__(self, blocks: int, block_size: int, as_is: bool = False, ahead: int = 0, **cache: Any) -> None:
        self.block_size = block_size
        self.output_reserve = self._ahead = ahead
        self._as_is = as_is
        self.total = blocks * block_size
        cache = {"enable_prefix_caching": True} | cache
        self._config = config.CacheConfig(MAX_BATCHES, block_size, 0, blocks, **cache)
        limits = config.SchedulerConfig(MAX_BATCHES, UNLIMITED)
        meta = messages.SequenceMeta(block_size, strategy=strategy.ARSequenceStrategy())
        self._scheduler = paging.Scheduler(limits, self._config, meta)
        self._blocks = self._scheduler.block_manager
        self._free = self._blocks.allocator.get_phy_allocator("gpu")
        self._session_ids = itertools.count()
        self._sequences: dict[str, Any] = {}
        self._prefilling: set[str] = set()
        self._batch: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        resumed = rid in self._sequences
        if not resumed:
            session = self._scheduler.add_session(next(self._session_ids))
            adapter = None if extra_key is None else f"adapter-{extra_key}"
            self._sequences[rid] = session.add_sequence(np.array(tokens), adapter_name=adapter)
        seq = self._sequences[rid]
        others = [waiting for waiting in self._scheduler.waiting if waiting is not seq]
        self._config.max_prefill_token_num = n
        attempt = paging._PrefillAdmissionAttempt(self._scheduler, seq, others, self._ahead, 0, False, True)
        if not attempt.run().admitted:
            if not resumed:
                self._end(rid)
            return None
        seq.state.activate()
        self._schedule_prefill(rid, n)
        return int(seq.num_history_ids)

    def append(self, rid: str, token: int) -> None:
        self._sequences[rid].update_token_ids(np.array([token]), mode=messages.UpdateTokenMode.DECODE)

    def reserve(self, rid: str, n: int) -> bool:
        seq = self._sequences[rid]
        if rid in self._prefilling:
            if not self._scheduler.reserve_long_context_chunk(seq, n, self._ahead, n == seq.num_token_ids):
                return False
            self._schedule_prefill(rid, n)
            return True
        if not self._make_room(seq, 0):
            return False
        self._batch[rid] = n
        return True

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        self._scheduler.activate_seqs([self._sequences[rid] for rid in self._batch])

    def slots(self, rid: str) -> list[int]:
        return slots_of(self.blocks(rid), self.block_size)

    def blocks(self, rid: str) -> list[int]:
        """The block table: block i holds positions [i * block_size, (i + 1) * block_size)."""
        table: list[int] = self._blocks.get_block_table(self._sequences[rid]).tolist()
        return table

    def commit(self, rid: str, n: int) -> None:
        del self._batch[rid]
        if rid in self._prefilling:
            seq = self._sequences[rid]
            seq.set_step(seq.num_history_ids + n)

    def finish(self, rid: str) -> None:
        self._sequences[rid].state.finish()
        self._end(rid)

    def abort(self, rid: str) -> None:
        self._end(rid)

    def preempt(self, rid: str) -> None:
        seq = self._sequences[rid]
        self._scheduler.deactivate_seqs([seq])
        self._scheduler.evict_seqs([seq])
        if not self._as_is:
            if self._comes_back_wrong(rid, seq):
                seq.state.free()
            else:
                self._publish_computed(seq)
        self._prefilling.discard(rid)

    def avail(self) -> int:
        return self.free_now() + len(self._evictable()) * self.block_size

    def free_now(self) -> int:
        return int(self._blocks.get_num_free_gpu_blocks()) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self.free_blocks(), self.block_size)

    def free_blocks(self) -> list[int]:
        """The physical blocks that nobody owns."""
        free: list[int] = self._free._free_blocks[self._free._num_blocks - self._free._free_count :].tolist()
        return free

    def _schedule_prefill(self, rid: str, n: int) -> None:
        left = self._sequences[rid].num_token_ids
        self._batch[rid] = min(n, left)
        (self._prefilling.add if n < left else self._prefilling.discard)(rid)

    def _make_room(self, seq: Any, more: int) -> bool:
        """Gives a request that decodes blocks for its tokens and so many `more`, if it lacks any."""
        if self._blocks.num_required_blocks(seq, more) > 0:
            waiting, room = self._scheduler.hanging + self._scheduler.waiting, max(more, self._ahead)
            if not self._scheduler.eviction_helper.evict_for_seq(seq, waiting, room):
                return False
            self._blocks.allocate(seq, room)
            self._scheduler.block_trie.allocate(seq)
        return True

    def _comes_back_wrong(self, rid: str, seq: Any) -> bool:
        """Tells whether a preempted request would be resumed in the wrong place if it kept what it has."""
        return rid in self._prefilling

    def _publish_computed(self, seq: Any) -> None:
        # The trie publishes up to this limit; the last token may have no slot yet.
        seq.kv_token_limit = seq.num_history_ids
        self._scheduler.block_trie.allocate(seq)
        seq.kv_token_limit = None

    def _end(self, rid: str) -> None:
        self._prefilling.discard(rid)
        self._batch.pop(rid, None)
        self._scheduler.end_session(self._sequences.pop(rid).session_id)

    def _evictable(self) -> list[int]:
        """The blocks that only the trie and waiting requests own."""
        owners: Counter[int] = Counter()
        nodes = list(self._scheduler.block_trie._roots.values())
        while nodes:
            children = nodes.pop().children.values()
            owners.update(int(child.block_id) for child in children)
            nodes.extend(children)
        for seq in self._scheduler.waiting:
            owners.update(seq.logical_blocks.get_real_blocks().tolist())
        owned = self._blocks.allocator._log_mem.ref_count
        return [block for block, count in owners.items() if owned[block] == count]


make = LmdeployKVManager
make_keeping_chunks = partial(LmdeployKVManager, as_is=True)
make_room_ahead = partial(LmdeployKVManager, as_is=True, ahead=2)
