"""kv_manager with a tier: full blocks are stored behind the forward, and an admission loads what it finds there.

Nothing waits for a store: it keeps its source block until its end is heard, also if the request is gone by then. A
request whose blocks are in the tier has its slots from its admission on, and is ready when its load has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable

from kvlockstep.reference.kv.transfers import Loading, Transfer
from kvlockstep.reference.kv_manager.manager import Key, KVManager, Request
from kvlockstep.reference.kv_manager.tier import HOST, Load
from kvlockstep.reference.kv_manager.transferring import Transferring


class TieredManager(KVManager, Transferring):
    """Meets reference.contracts.KVManagerTarget with transfers. The tier is twice as large as the pool."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._set_up(self._tier_size(blocks))
        super().__init__(blocks, block_size)

    def reset(self) -> None:
        super().reset()
        self._clear()

    def admit(  # type: ignore[override]
        self, rid: str, tokens: list[int], extra_key: int | None, n: int
    ) -> int | Loading | None:
        hit = self._lookup(tokens, extra_key)
        found = self._in_tier(tokens, extra_key, len(hit))
        cached = (len(hit) + len(found)) * self.block_size
        need = self._blocks_for(min(cached + n, len(tokens))) - len(hit)
        if not found or need > len(self._free) + sum(block not in hit for block in self._idle):
            return super().admit(rid, tokens, extra_key, n)
        for block in hit:
            self._hold(block)
        # Before room is made: who is evicted for it may need units, too.
        self._pin(found)
        table = hit + self._take(need)
        self._live[rid] = Request(list(tokens), extra_key, table, len(hit) * self.block_size)
        self._load(rid, found, table[len(hit) : len(hit) + len(found)])
        return Loading(cached)

    def ready(self, rid: str) -> int | None:
        request = self._live[rid]
        return None if any(load.request is request for load in self._loads.values()) else request.computed

    def limbo(self) -> int:
        held = {block for request in self._live.values() for block in request.table}
        return len(self._pinned() - held) * self.block_size

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        first = request.computed // self.block_size
        super().commit(rid, n)
        for block in request.table[first : request.computed // self.block_size]:
            key = self._key_of.get(block)
            if key is not None and not self._tier.knows(key):
                self._store(key, block)

    def _in_tier(self, tokens: list[int], extra_key: int | None, cached: int) -> dict[Key, int]:
        """The keys and units of what the tier has behind so many cached blocks."""
        ends = range((cached + 1) * self.block_size, len(tokens), self.block_size)
        wanted = (self._key(extra_key, tokens[:end]) for end in ends)
        found = itertools.takewhile(lambda pair: pair[1] is not None, ((key, self._tier.find(key)) for key in wanted))
        return {key: unit for key, unit in found if unit is not None}

    def _pin(self, found: dict[Key, int]) -> None:
        """Keeps what a load is about to read."""
        for key in found:
            self._tier.begin_load(key)

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        """Submits a load of what is pinned. It keeps its blocks until its end is heard."""
        for block in blocks:
            self._hold(block)
        id = self._submit("load", list(zip(found.values(), blocks, strict=True)), rid)
        self._loads[id] = Load(self._live[rid], list(found), list(found.values()), blocks)

    def _end_load(self, load: Load, ok: bool) -> None:
        """Publishes the blocks of a load, unless it failed or somebody has computed them meanwhile."""
        for key, unit, block in zip(load.keys, load.units, load.blocks, strict=True):
            self._tier.end_load(key, unit, ok)
            if ok and key not in self._cached:
                self._cached[key] = block
                self._key_of[block] = key
        if ok:
            load.request.computed += len(load.blocks) * self.block_size
        for block in reversed(load.blocks):
            self._drop(block)

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str) -> Hashable:
        id = next(self._ids)
        self._submitted.append(Transfer(id, "load" if kind == "load" else "store", HOST, pairs, rids))
        return id
