"""Pools and tables of the reference with groups: which prefixes can be hit, which blocks a step takes."""

from __future__ import annotations

from collections import Counter

from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.pool import Key, Pool
from kvlockstep.reference.kv_manager.groups.request import Request, to_hit, touched


class GroupTables:
    """Groups `groups` in `pools`, which has the number of blocks of each pool by its name."""

    def __init__(self, groups: tuple[Group, ...], pools: dict[str, int]) -> None:
        self.groups = groups
        self.block_size = groups[0].block_size
        self.pools = pools if len(pools) > 1 else None
        self.total = pools[groups[0].pool] * self.block_size
        self._sizes = pools
        self.reset()

    def reset(self) -> None:
        self._pools = {name: self._make_pool(blocks) for name, blocks in self._sizes.items()}
        self._live: dict[str, Request] = {}
        self._due: list[tuple[str, int, int]] = []

    def _make_pool(self, blocks: int) -> Pool:
        return Pool(blocks)

    def _pool(self, g: int) -> Pool:
        return self._pools[self.groups[g].pool]

    def _key(self, g: int, tokens: list[int], extra_key: int | None, place: int) -> Key:
        """Key of the block at this place: everything that its content depends on."""
        return g, extra_key, tuple(tokens[: (place + 1) * self.groups[g].block_size])

    def _lookup(self, tokens: list[int], extra_key: int | None) -> int:
        """The longest length at which every group can serve, with at least one token left to compute."""
        longest = range(min([len(tokens) - 1, *self._full_heads(tokens, extra_key)]), 0, -1)
        # The last ones first: full attention, which has the most places to look at, mostly stands in front.
        every = range(len(self.groups))[::-1]
        return next((c for c in longest if all(self._serves(g, tokens, extra_key, c) for g in every)), 0)

    def _full_heads(self, tokens: list[int], extra_key: int | None) -> list[int]:
        """The length of the published head in each full group: a shortcut, `_serves` would say the same."""
        heads = []
        for g in [g for g, group in enumerate(self.groups) if group.kind == "full"]:
            place, size = 0, self.groups[g].block_size
            while place * size < len(tokens) and self._find(g, tokens, extra_key, place) is not None:
                place += 1
            heads.append(place * size)
        return heads

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        """True if everything is published that the group reads first behind so many tokens."""
        if self.groups[g].kind == "state" and cached % self.groups[g].block_size:
            return False
        places = to_hit(self.groups[g], cached)
        whole = places.stop * self.groups[g].block_size <= cached
        return whole and all(self._find(g, tokens, extra_key, place) is not None for place in places)

    def _find(self, g: int, tokens: list[int], extra_key: int | None, place: int) -> int | None:
        return self._pool(g).cached.get(self._key(g, tokens, extra_key, place))

    def _hit(self, tokens: list[int], extra_key: int | None, cached: int) -> Request:
        """A request that names the blocks of its hit, and holds none of them yet."""
        request = Request(list(tokens), extra_key, cached)
        for g, group in enumerate(self.groups):
            found = {place: self._find(g, tokens, extra_key, place) for place in to_hit(group, cached)}
            head = 0 if group.kind == "state" else touched(group, cached, cached).start
            of_table = {} if group.kind == "state" else found
            request.tables.append([of_table.get(i) for i in range(max([head, *(i + 1 for i in of_table)]))])
            request.states.append(next(iter(found.values()), None) if group.kind == "state" else None)
            request.saves.append({})
        return request

    def _need(self, request: Request, n: int) -> Counter[str]:
        """How many blocks of each pool the next `n` tokens take."""
        need: Counter[str] = Counter()
        for g, group in enumerate(self.groups):
            if group.kind == "state":
                need[group.pool] += len(request.stops(n)) - (self._own_state(g, request) is not None)
            else:
                end = blocks_for(request.computed + n, group.block_size)
                need[group.pool] += max(0, end - len(request.tables[g])) + (self._shared(g, request) is not None)
        return need

    def _grow(self, request: Request, n: int) -> None:
        """Takes what `_need` has counted."""
        for g in range(len(self.groups)):
            self._grow_in(g, request, n)

    def _grow_in(self, g: int, request: Request, n: int) -> None:
        """Takes the blocks of one group; a block that is written and shared is copied."""
        group, pool, table = self.groups[g], self._pool(g), request.tables[g]
        if group.kind == "state":
            own = self._own_state(g, request)
            for stop in request.stops(n):
                request.saves[g][stop], own = pool.take() if own is None else own, None
            return
        if (source := self._shared(g, request)) is not None:
            target = table[request.computed // group.block_size] = pool.take()
            self._due.append((group.pool, source, target))
        missing = blocks_for(request.computed + n, group.block_size) - len(table)
        table += [pool.take() for _ in range(missing)]

    def _own_state(self, g: int, request: Request) -> int | None:
        """The block of the state, if it may be written over: nobody else holds it, and nobody can hit it."""
        pool, state = self._pool(g), request.states[g]
        return state if state is not None and pool.refs[state] == 1 and state not in pool.key_of else None

    def _shared(self, g: int, request: Request) -> int | None:
        """The block of the next position, if others hold it as well."""
        place, table = request.computed // self.groups[g].block_size, request.tables[g]
        block = table[place] if place < len(table) else None
        return block if block is not None and self._pool(g).refs[block] > 1 else None
