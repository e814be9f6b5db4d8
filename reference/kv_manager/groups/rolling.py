"""kv_manager with a rolling group: full attention, and a window in a buffer that each request goes round in.

Position p of the buffer is in its slot p % reach. Nothing is shared, so there is no prefix cache.
"""

from __future__ import annotations

from kvlockstep.reference.kv_manager.groups.contract import Group, needed, places, stored


class RollingManager:
    """Full attention and a buffer of `reach` positions, in one pool of 2 * `blocks` blocks."""

    prefix_cache = False
    chunk = can_fork = can_reset = True
    # A token that is written pushes one out, which could not come back if it was rejected.
    tokens_per_decode = 1
    reach = 3

    def __init__(self, blocks: int, block_size: int) -> None:
        self.groups = Group("full", block_size), Group("rolling", block_size, reach=self.reach)
        self.block_size, self.total = block_size, 2 * blocks * block_size
        self.reset()

    def reset(self) -> None:
        self._free = list(range(self.total // self.block_size))
        self._tables: dict[str, list[list[int]]] = {}
        self._computed: dict[str, int] = {}
        self._stop: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._tables[rid] = [[] for _ in self.groups]
        self._computed[rid] = self._stop[rid] = 0
        if self.reserve(rid, min(n, len(tokens))):
            return 0
        self.finish(rid)
        return None

    def append(self, rid: str, token: int) -> None:
        pass

    def reserve(self, rid: str, n: int) -> bool:
        stop = self._computed[rid] + n
        more = [places(self.groups[g], stop) - len(table) for g, table in enumerate(self._tables[rid])]
        if sum(more) > len(self._free):
            return False
        for table, blocks in zip(self._tables[rid], more, strict=True):
            table += [self._free.pop(0) for _ in range(blocks)]
        self._stop[rid] = stop
        return True

    def copies(self) -> list[tuple[int, int]]:
        return []

    def launch(self) -> None:
        pass

    def slots(self, rid: str, group: int) -> list[int | None]:
        kind, computed, stop = self.groups[group], self._computed[rid], self._stop[rid]
        if kind.kind == "full":
            return [self._slot(rid, group, position) for position in range(stop)]
        named = *needed(kind, computed, computed), *stored(kind, computed, stop, stop)
        return [self._slot(rid, group, p % kind.reach) if p in named else None for p in range(stop)]

    def _slot(self, rid: str, group: int, position: int) -> int:
        block = self._tables[rid][group][position // self.block_size]
        return block * self.block_size + position % self.block_size

    def held(self, rid: str, group: int) -> list[int]:
        return self._tables[rid][group]

    def commit(self, rid: str, n: int) -> None:
        self._computed[rid] += n

    def finish(self, rid: str) -> None:
        for table in self._tables.pop(rid):
            self._free += table
        del self._computed[rid], self._stop[rid]

    def abort(self, rid: str) -> None:
        self.finish(rid)

    def preempt(self, rid: str) -> None:
        self.finish(rid)

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        tables = self._tables[rid]
        if sum(map(len, tables)) > len(self._free):
            return None
        self._tables[child] = [[self._free.pop(0) for _ in table] for table in tables]
        self._computed[child] = self._stop[child] = self._computed[rid]
        both = zip(tables, self._tables[child], strict=True)
        return [pair for sources, targets in both for pair in zip(sources, targets, strict=True)]

    def avail(self) -> int:
        return len(self._free)

    def free_slots(self) -> list[int]:
        return list(self._free)

    free_now = avail
