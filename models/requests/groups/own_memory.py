"""KV memory of several groups in the target's own memory, which stores a number in each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.groups.content import WHOLE, Content, Place
from kvlockstep.models.requests.groups.memory import GroupMemory
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.kv.memory import APART, UNWRITTEN, KVMemory
from kvlockstep.reference.kv_manager.groups.contract import Group


class OwnGroupMemory(GroupMemory):
    """A block of a pool has as many rows as its largest group has slots: row `block * rows + offset`.

    `stores` are the memories by pool, each with the calls of KVMemory. A slot of attention is one row. A state is all
    rows of its block, each with a number of its own, so that a copy which leaves out or moves a row shows. Before
    anything is judged, what the stores hold replaces what was written.
    """

    def __init__(self, groups: Sequence[Group], goals_met: Counter[str], stores: Mapping[str, KVMemory]) -> None:
        super().__init__(groups, goals_met)
        self._stores = stores
        sizes = {pool: [group.block_size for group in groups if group.pool == pool] for pool in stores}
        self._rows = {pool: max(of_pool) for pool, of_pool in sizes.items()}
        self._unstored: dict[str, dict[int, int]] = {pool: {} for pool in stores}

    def write(
        self, request: Request, g: int, slots: Sequence[int | None], positions: range, stamps: Sequence[int]
    ) -> tuple[int, str] | None:
        conflict = super().write(request, g, slots, positions, stamps)
        pool, size = self._groups[g].pool, self._groups[g].block_size
        for position in positions if conflict is None else ():
            if position < len(slots) and (slot := slots[position]) is not None:
                self._unstored[pool].update(self._stored(g, (pool, slot // size), slot % size, stamps[position]))
        return conflict

    def save(self, request: Request, g: int, position: int, block: int) -> str | None:
        other = super().save(request, g, position, block)
        if other is None:
            pool, stamp = self._groups[g].pool, self.stamps(request, position)[position - 1]
            self._unstored[pool].update(self._stored(g, (pool, block), WHOLE, stamp))
        return other

    def copy(self, copies: Iterable[tuple[str, int, int]]) -> None:
        copies = list(copies)
        super().copy(copies)
        self._store()
        for pool, store in self._stores.items():
            pairs = [(source, target) for name, source, target in copies if name == pool]
            rows = [self._rows_of(pool, *pair) for pair in pairs]
            if rows:
                store.copy([pair for sources, targets in rows for pair in zip(sources, targets, strict=True)])

    def content(self, place: Place) -> Content:
        known = self._stands(place)
        self._look(place[0], [(place[1], offset) for offset in known.cells])
        return super().content(place)

    def put(self, place: Place, content: Content) -> None:
        super().put(place, content)
        for offset, stamp in content.cells.items():
            if stamp > UNWRITTEN:
                self._unstored[place[0]].update(self._stored(content.group, place, offset, stamp))

    def poison(self, pool: str, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().poison(pool, blocks)
        self._store()
        self._stores[pool].poison([row for rows in self._rows_of(pool, *blocks) for row in rows])

    def reset(self, kept: Collection[Place] = ()) -> None:
        super().reset(kept)
        for pool in self._stores:
            self.poison(pool, [block for block in self._pools[pool].contents if (pool, block) not in kept])

    def first_wrong(
        self, request: Request, g: int, slots: Sequence[int | None], positions: range, stamps: Sequence[int]
    ) -> Cell | None:
        # What the target has done to its memory meanwhile nobody knows.
        self._right.clear()
        size = self._groups[g].block_size
        named = [slot for slot in (slots[position] for position in positions) if slot is not None]
        self._look(self._groups[g].pool, [(slot // size, slot % size) for slot in named])
        return super().first_wrong(request, g, slots, positions, stamps)

    def wrong_state(self, request: Request, g: int, block: int) -> tuple[str, str] | None:
        self._look(self._groups[g].pool, [(block, WHOLE)])
        return super().wrong_state(request, g, block)

    def _look(self, pool: str, cells: Sequence[tuple[int, int]]) -> None:
        """Reads these cells, (block, offset), of which the store may have something else than was written."""
        self._store()
        contents = self._pools[pool].contents
        written = [(cell, content) for cell in cells if (content := contents.get(cell[0]))]
        known = [(cell, content) for cell, content in written if cell[1] in content.cells]
        expected = [self._stored(c.group, (pool, block), off, c.cells[off]) for (block, off), c in known]
        read = iter(self._stores[pool].read([row for rows in expected for row in rows]))
        for ((block, offset), content), rows in zip(known, expected, strict=True):
            found = [next(read) for _ in rows]
            if content.cells[offset] > 0 and found != list(rows.values()):
                contents[block] = self._told_by(found, pool, offset)

    def _told_by(self, found: list[int], pool: str, offset: int) -> Content:
        """The content that stands in the rows of a cell."""
        cells = {self._read(number, pool) for number in found}
        group, whole, stamp = next(iter(cells)) if len(cells) == 1 and min(found) > 0 else (0, offset == WHOLE, APART)
        return Content(group, {WHOLE if whole else offset: stamp})

    def _store(self) -> None:
        """Stores what was written since the last time."""
        for pool, numbers in self._unstored.items():
            if numbers:
                self._stores[pool].write(list(numbers), list(numbers.values()))
                numbers.clear()

    def _stored(self, g: int, place: Place, offset: int, stamp: int) -> dict[int, int]:
        """The number in each row of a cell. They say the group, the stamp, and for a state which row of it this is."""
        pool, block = place
        of_state, rows = offset == WHOLE, self._rows[pool]
        which = range(rows) if of_state else (offset,)
        known = 2 * (stamp * len(self._groups) + g) + of_state
        return {block * rows + row: known * rows + row for row in which}

    def _read(self, number: int, pool: str) -> tuple[int, bool, int]:
        """The group, whether it is a state, and the stamp that a number stands for, in whatever row."""
        known = number // self._rows[pool]
        stamp, group = divmod(known // 2, len(self._groups))
        return group, bool(known % 2), stamp

    def _rows_of(self, pool: str, *blocks: int) -> list[range]:
        rows = self._rows[pool]
        return [range(block * rows, (block + 1) * rows) for block in blocks]


def memory_of(adapter: Any, traits: Any, goals_met: Counter[str]) -> Any:
    """The memory of a target with these traits: its own (attribute `memory`, by pool) or one that the judge owns."""
    own = getattr(adapter, "memory", None)
    if own is None:
        return GroupMemory(traits.groups, goals_met)
    pools = {group.pool for group in traits.groups}
    if not isinstance(own, Mapping) or own.keys() != pools:
        names = ", ".join(map(repr, sorted(pools)))
        wrong = f"with groups, memory has to be a dict with one memory for each pool: {names}"
        raise Divergence(ERROR_CONTRACT.id, wrong)
    return OwnGroupMemory(traits.groups, goals_met, own)
