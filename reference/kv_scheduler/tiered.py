"""kv_scheduler with a tier: full blocks are stored behind the forward and loaded again on a hit.

Nothing waits for a store: it keeps its source block until its end is heard, also if the request is gone by then. A
request whose blocks are in the tier waits at the head of the queue until they are loaded; then it starts with a hit.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.tier import HOST, Block, Key
from kvlockstep.reference.kv_manager.transferring import Transferring
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler


class Load(NamedTuple):
    """A load in flight for a request: what it reads, the blocks that it fills, and those in front that were cached."""

    rid: str
    keys: list[Key]
    units: list[int]
    blocks: list[Block]
    hit: list[Block]

    @property
    def kept(self) -> list[Block]:
        """The blocks that nobody else may take."""
        return [*self.hit, *self.blocks]


class TieredScheduler(KVScheduler, Transferring):
    """Meets kv_scheduler.contract.KVSchedulerTarget with transfers. The tier is twice as large as the pool."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._set_up(self._tier_size(blocks))
        self._clear()

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self.poll()
        return super().update(sampled, accepted)

    def reset(self) -> None:
        super().reset()
        self._tier = self.tier_type(self.tiers[HOST])

    def limbo(self) -> int:
        held = {block for request in self._kv._live.values() for block in request.table}
        return len(self._pinned() - held) * self.block_size

    def _commit(self, job: Job, n: int) -> None:
        first = job.computed
        super()._commit(job, n)
        for key, block in self._filled(job, first):
            if not self._tier.knows(key):
                self._store(key, block)

    def _filled(self, job: Job, first: int) -> Iterable[tuple[Key, Block]]:
        """The published blocks that were filled when positions from `first` on were computed."""
        size = self.block_size
        blocks = self._kv._live[job.rid].table[first // size : job.computed // size]
        return [(self._kv._key_of[block], block) for block in blocks if block in self._kv._key_of]

    def _start(self, job: Job, left: int) -> int | None:
        if any(load.rid == job.rid for load in self._loads.values()) or self._load(job):
            return None
        return super()._start(job, left)

    def _load(self, job: Job) -> bool:
        """Submits a load of what the tier has behind the request's cached prefix; False if that is nothing.

        The blocks of the prefix are kept as well: without them the loaded ones are no hit.
        """
        kv, size = self._kv, self.block_size
        hit = kv._lookup(job.tokens, job.extra_key)
        ends = range((len(hit) + 1) * size, len(job.tokens), size)
        wanted = [kv._key(job.extra_key, job.tokens[:end]) for end in ends]
        units = list(itertools.takewhile(lambda unit: unit is not None, map(self._tier.find, wanted)))
        room = len(kv._free) + sum(block not in hit for block in kv._idle)
        if not units or len(units) > room:
            return False
        for block in hit:
            self._hold(block)
        keys = wanted[: len(units)]
        for key in keys:
            self._tier.begin_load(key)
        load = Load(job.rid, keys, [unit for unit in units if unit is not None], kv._take(len(units)), hit)
        id = self._submit("load", list(zip(load.units, load.blocks, strict=True)), job.rid)
        self._loads[id] = load
        return True

    def _end_load(self, load: Load, ok: bool) -> None:
        """Publishes the blocks of a load, unless it failed or somebody has computed them meanwhile."""
        for key, unit in zip(load.keys, load.units, strict=True):
            self._tier.end_load(key, unit, ok)
        for key, block in zip(load.keys, load.blocks, strict=True) if ok else ():
            self._publish_loaded(key, block)
        for block in reversed((*load.hit, *load.blocks)):
            self._drop(block)

    def _publish_loaded(self, key: Key, block: Block) -> None:
        if key not in self._kv._cached:
            self._kv._cached[key] = block
            self._kv._key_of[block] = key

    def _hold(self, block: Block) -> None:
        self._kv._hold(block)

    def _drop(self, block: Block) -> None:
        self._kv._drop(block)

    def _submit(self, kind: str, pairs: list[tuple[Any, ...]], *rids: str, before: bool = False) -> Hashable:
        id = next(self._ids)
        self._submitted.append(Transfer(id, "load" if kind == "load" else "store", HOST, pairs, rids, before))
        return id
