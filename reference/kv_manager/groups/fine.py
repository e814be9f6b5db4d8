"""kv_manager with groups whose hashes have fewer tokens than a block: a hit may end within a block.

Such a hit has a block that others may hit, or still write to. It is copied before the request goes on in it.
"""

from __future__ import annotations

from kvlockstep.reference.kv_manager.groups.contract import Group
from kvlockstep.reference.kv_manager.groups.manager import GroupedManager
from kvlockstep.reference.kv_manager.groups.pool import Key, Pool
from kvlockstep.reference.kv_manager.groups.request import Request, to_hit


class FinePool(Pool):
    """A block has a key for each prefix that ends within it."""

    def publish(self, key: Key, block: int) -> None:
        if key not in self.cached:
            self.cached[key] = block
            self.key_of.setdefault(block, key)

    def evict(self, block: int) -> None:
        del self.idle[block], self.key_of[block]
        self.cached = {key: other for key, other in self.cached.items() if other != block}
        self.free.append(block)

    def longest(self, block: int) -> int:
        """The length of the longest prefix that can be hit with the block."""
        return max((len(tokens) for (_, _, tokens), other in self.cached.items() if other == block), default=0)


class FineManager(GroupedManager):
    """Full groups, of which a prefix can be hit behind every `unit` tokens, and states on their grids."""

    copies_at_admit = True

    def __init__(self, groups: tuple[Group, ...], pools: dict[str, int], unit: int) -> None:
        super().__init__(groups, pools)
        self._unit = unit

    def reset(self) -> None:
        super().reset()
        self._fine = {name: FinePool(blocks) for name, blocks in self._sizes.items()}
        self._pools = dict(self._fine)

    def commit(self, rid: str, n: int) -> None:
        request, unit = self._live[rid], self._unit
        first = (request.computed // unit + 1) * unit
        super().commit(rid, n)
        for g, group in enumerate(self.groups):
            for end in range(first, request.computed + 1, unit) if group.kind == "full" else ():
                block = request.tables[g][(end - 1) // group.block_size]
                assert block is not None
                self._pool(g).publish((g, request.extra_key, tuple(request.tokens[:end])), block)

    def _full_heads(self, tokens: list[int], extra_key: int | None) -> list[int]:
        return []

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        if self.groups[g].kind == "state":
            return super()._serves(g, tokens, extra_key, cached)
        places = to_hit(self.groups[g], cached)
        found = (self._find(g, tokens[:cached], extra_key, place) for place in places)
        return cached % self._unit == 0 and all(block is not None for block in found)

    def _hit(self, tokens: list[int], extra_key: int | None, cached: int) -> Request:
        # The key of the last block has the tokens of the hit alone.
        request = super()._hit(tokens[:cached], extra_key, cached)
        request.tokens = list(tokens)
        return request

    def _shared(self, g: int, request: Request) -> int | None:
        """The block of the next position, if others hold it or can hit it with what the request would write over."""
        place, table = request.computed // self.groups[g].block_size, request.tables[g]
        block = table[place] if place < len(table) else None
        if block is None:
            return None
        pool = self._fine[self.groups[g].pool]
        # A request that is about to be admitted does not hold its hit yet.
        holds = any(other is request for other in self._live.values())
        return block if pool.refs[block] > holds or pool.longest(block) > request.computed else None
