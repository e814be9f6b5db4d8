"""kv_manager with groups and a tier: the blocks of every group are stored, and an admission loads what its hit lacks.

A unit of the tier holds a block of any group. The hit is the longest that pool and tier serve together: of each group
the blocks that are read first behind it. Those that the pool has are shared, the others are loaded into new ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from kvlockstep.reference.kv.transfers import Loading, Transfer
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.in_tier import Block, block_of, filled, held_blocks, longest_hit, named
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_manager.tier import HOST, Load
from kvlockstep.reference.kv_manager.transferring import Transferring


class TieredGroupManager(GroupedManager, Transferring):
    """Meets the contract with the traits `groups` and `tiers`. The tier is twice as large as the pools."""

    mixed_hits = True

    def __init__(self, groups: tuple[Group, ...], pools: dict[str, int]) -> None:
        self._set_up(self._tier_size(sum(pools.values())))
        super().__init__(groups, pools)

    def reset(self) -> None:
        super().reset()
        self._clear()

    def admit(  # type: ignore[override]
        self, rid: str, tokens: list[int], extra_key: int | None, n: int
    ) -> int | Loading | None:
        cached, keys = self._longest(tokens, extra_key)
        wanted = [key for key in keys if key not in self._pool(key[0]).cached]
        request = self._hit(tokens, extra_key, cached)
        behind = min(n, len(tokens) - cached)
        if not wanted or not self._fits(request, wanted, behind):
            return super().admit(rid, tokens, extra_key, n)
        self._hold_all(request)
        self._live[rid] = request
        self._load(rid, wanted)
        for g, group in enumerate(self.groups):
            # The next state is saved by the first step behind the load; until then it takes no block.
            if group.kind != "state":
                self._grow_in(g, request, behind)
        return Loading(cached)

    def ready(self, rid: str) -> int | None:
        request = self._live[rid]
        return None if any(load.request is request for load in self._loads.values()) else request.computed

    def limbo(self, pool: str = "") -> int:
        of_pool = pool or self.groups[0].pool
        return sum(block[0] == of_pool for block in self._pinned() - held_blocks(self))

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        first = request.computed
        super().commit(rid, n)
        for key, block in filled(self, request.tokens, request.extra_key, first, request.computed):
            if not self._tier.knows(key):
                self._store(key, block)

    def _longest(self, tokens: list[int], extra_key: int | None) -> tuple[int, list[Key]]:
        """The longest hit that pool and tier serve together, and the keys of its blocks."""
        return longest_hit(self, self._tier, tokens, extra_key)

    def _fits(self, request: Request, wanted: list[Key], n: int) -> bool:
        """True if each pool has room for what is loaded into it and for `n` tokens behind that, beside the hit."""
        need = self._need(request, n) + Counter(self.groups[key[0]].pool for key in wanted)
        hit = {block_of(self, g, number) for g in range(len(self.groups)) for number in request.held(g)}
        return all(
            need[name] <= pool.room([number for other, number in hit if other == name])
            for name, pool in self._pools.items()
        )

    def _hold_all(self, request: Request) -> None:
        for g in range(len(self.groups)):
            for number in request.held(g):
                self._pool(g).hold(number)

    def _load(self, rid: str, wanted: list[Key]) -> None:
        """Takes blocks for the keys, which the request holds from now on, and submits their load."""
        units = [self._tier.find(key) for key in wanted]
        for key in wanted:
            self._tier.begin_load(key)
        blocks = [block_of(self, key[0], self._pool(key[0]).take()) for key in wanted]
        for key, block in zip(wanted, blocks, strict=True):
            self._give(self._live[rid], key, block)
        self._begin(rid, Load(self._live[rid], wanted, [unit for unit in units if unit is not None], blocks))

    def _give(self, request: Request, key: Key, block: Block) -> None:
        g, _, tokens = key
        if self.groups[g].kind == "state":
            request.states[g] = block[1]
        else:
            request.tables[g][len(tokens) // self.groups[g].block_size - 1] = block[1]

    def _begin(self, rid: str, load: Load) -> None:
        """Submits a load, which keeps its blocks until its end is heard."""
        for block in load.blocks:
            self._hold(block)
        self._loads[self._submit("load", list(zip(load.units, load.blocks, strict=True)), rid)] = load

    def _end_load(self, load: Load, ok: bool) -> None:
        """Publishes the blocks of a load, unless it failed or somebody has computed them meanwhile."""
        for key, unit, block in zip(load.keys, load.units, load.blocks, strict=True):
            self._tier.end_load(key, unit, ok)
            if ok:
                self._pool(key[0]).publish(key, block[1])
        if not ok and any(request is load.request for request in self._live.values()):
            self._start_over(load.request)
        for block in reversed(load.blocks):
            self._drop(block)

    def _start_over(self, request: Request) -> None:
        """A request whose load has failed goes on from what the pool alone serves: windows, states and all."""
        for g in range(len(self.groups)):
            for number in reversed(request.held(g)):
                self._pool(g).drop(number)
        again = self._hit(request.tokens, request.extra_key, self._lookup(request.tokens, request.extra_key))
        request.computed, request.tables, request.states = again.computed, again.tables, again.states
        self._hold_all(request)

    def _hold(self, block: Block) -> None:
        self._pools[block[0]].hold(block[1])

    def _drop(self, block: Block) -> None:
        self._pools[block[0]].drop(block[1])

    def _submit(self, kind: str, pairs: list[tuple[Any, Any]], *rids: str) -> Hashable:
        id = next(self._ids)
        self._submitted.append(
            Transfer(id, "load" if kind == "load" else "store", HOST, named(self, kind, pairs), rids)
        )
        return id
