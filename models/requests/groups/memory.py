"""KV memory of several groups: a block has the stamps of one group, by offset, or one state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.slot_memory import LEFT_BY_TRANSFERS
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.reference.kv.memory import APART, POISON, UNWRITTEN, Provenance
from kvlockstep.reference.kv_manager.groups.contract import Group

# A block of a pool.
Place = tuple[str, int]
# The offset of a state, which is the whole block.
WHOLE = -1
# The offset of a transfer's mark, which holds for all offsets that were not written since.
REST = -2
NOBODY = -1
MARKS = {**LEFT_BY_TRANSFERS, POISON: "freed memory", APART: "parts of different KV"}


@dataclass(slots=True)
class Content:
    """The content of a block: the group that wrote it, and the stamp at each offset.

    `sketch` is a hash of it, None if it was not computed since the last change.
    """

    group: int
    cells: dict[int, int]
    sketch: int | None = field(default=None, compare=False, repr=False)

    def write(self, offset: int, stamp: int) -> None:
        """Writes a stamp at an offset."""
        self.cells[offset] = stamp
        self.sketch = None

    @property
    def left(self) -> dict[int, int]:
        """The mark that a transfer has left in the block, as a cell that stays beside later writes."""
        mark = self.cells.get(REST, self.cells.get(WHOLE, UNWRITTEN))
        return {REST: mark} if mark in LEFT_BY_TRANSFERS else {}


NOTHING = Content(NOBODY, {})
FREED = Content(NOBODY, {WHOLE: POISON})


class GroupMemory:
    """What stands in each block. A write of another group, or of a state, replaces all that stood in a block."""

    granularity = "slot"
    sparing = False

    def __init__(self, groups: Sequence[Group], goals_met: Counter[str]) -> None:
        self._groups = groups
        self._provenance = Provenance()
        self._goals_met = goals_met
        self._blocks: dict[Place, Content] = {}
        self._writers: dict[tuple[Place, int], tuple[str, int]] = {}
        self._owner: dict[Place, str] = {}
        self._histories: dict[int, Any] = {}

    def begin_forward(self) -> None:
        self._writers.clear()

    def end_forward(self) -> None:
        self._writers.clear()

    def write(self, request: Request, g: int, slots: Sequence[int | None], positions: range) -> tuple[int, str] | None:
        """Writes the stamps of those of these positions that have a slot; returns the slot of a conflict, and who wrote
        it first.
        """
        size, stamps = self._groups[g].block_size, request.stamped(self._provenance, positions.stop)
        for position in positions:
            slot = slots[position] if position < len(slots) else None
            if slot is None:
                continue
            place = self._place(g, slot // size)
            if (other := self._put(request.name, g, place, slot % size, stamps[position])) is not None:
                return slot, other
        return None

    def save(self, request: Request, g: int, position: int, block: int) -> str | None:
        """Saves the state behind so many tokens; returns the first writer of a conflict."""
        stamp = request.stamped(self._provenance, position)[position - 1]
        return self._put(request.name, g, self._place(g, block), WHOLE, stamp)

    def _put(self, name: str, g: int, place: Place, offset: int, stamp: int) -> str | None:
        other, written = self._writers.setdefault((place, offset), (name, stamp))
        if written != stamp:
            return other
        content = self._blocks.get(place, NOTHING)
        if content.group != g or (WHOLE in content.cells) != (offset == WHOLE):
            content = self._begin(g, place, offset)
        content.write(offset, stamp)
        if REST in content.cells and len(content.cells) > self._groups[g].block_size:
            # Every slot is written anew: nothing of the transfer is left.
            del content.cells[REST]
        if self._owner.setdefault(place, name) != name:
            self._goals_met["physical_reuse"] += 1
            self._owner[place] = name
        return None

    def _begin(self, g: int, place: Place, offset: int) -> Content:
        """Starts a block anew for a group; only the mark of a transfer stays."""
        left = {} if offset == WHOLE else self._blocks.get(place, NOTHING).left
        content = self._blocks[place] = Content(g, left)
        return content

    def mark(self, cells: Iterable[tuple[int, Place, int]], mark: int) -> None:
        """A mark of a transfer is written to these cells, (group, block, offset)."""
        for g, place, offset in cells:
            content = self._blocks.get(place, NOTHING)
            if content.group != g or offset == WHOLE:
                content = self._begin(g, place, offset)
            content.write(offset, mark)

    def remark(self, old: int, new: int) -> None:
        """Changes a mark of transfers to another one, wherever it stands."""
        for content in self._blocks.values():
            for offset in [offset for offset, stamp in content.cells.items() if stamp == old]:
                content.write(offset, new)

    @property
    def written(self) -> Iterable[Content]:
        """The contents of all blocks that were ever written."""
        return self._blocks.values()

    def content(self, place: Place) -> Content:
        """What a transfer reads in a block."""
        return self.copied(self._blocks.get(place, NOTHING))

    def put(self, place: Place, content: Content) -> None:
        """What a transfer leaves in a block."""
        self._blocks[place] = self.copied(content)

    @staticmethod
    def copied(content: Content) -> Content:
        return Content(content.group, dict(content.cells))

    def first_wrong(self, request: Request, g: int, slots: Sequence[int | None], positions: range) -> Cell | None:
        """The first of these positions that does not hold what it must."""
        size, stamps = self._groups[g].block_size, request.stamped(self._provenance, positions.stop)
        place, content = self._place(g, NOBODY), NOTHING
        for position in positions:
            slot = slots[position]
            assert slot is not None
            if slot // size != place[1]:
                place = self._place(g, slot // size)
                content = self._blocks.get(place, NOTHING)
            if content.group == g and content.cells.get(slot % size) == stamps[position]:
                continue
            writer = self._writers.get((place, slot % size), (None, 0))[0]
            want = self._name(Content(g, {slot % size: stamps[position]}), slot % size)
            return Cell(
                position, slot, slot // size, self._name(content, slot % size), want, position < request.hit,
                writer == request.name, writer,
            )  # fmt: skip
        return None

    def wrong_state(self, request: Request, g: int, block: int) -> tuple[str, str] | None:
        """What stands in a block and what must, if it is not the state behind all that the request has computed."""
        right = Content(g, {WHOLE: request.stamped(self._provenance, request.computed)[request.computed - 1]})
        content = self._blocks.get(self._place(g, block), NOTHING)
        return None if content == right else (self._name(content, WHOLE), self._name(right, WHOLE))

    def blocks_of(self, g: int, extra_key: int | None, tokens: Sequence[int]) -> list[Content]:
        """What the full blocks of these tokens must hold in a group, one behind the other."""
        size = self._groups[g].block_size
        stamps = self._provenance.extend(UNWRITTEN, extra_key, tokens[: len(tokens) // size * size])
        blocks = [stamps[i : i + size] for i in range(0, len(stamps), size)]
        if self._groups[g].kind == "state":
            return [Content(g, {WHOLE: block[-1]}) for block in blocks]
        return [Content(g, dict(enumerate(block))) for block in blocks]

    def full_blocks(self) -> set[tuple[int, int]]:
        """The group and the last stamp of each full block. That stamp stands for all tokens up to it."""
        last = {g: group.block_size - 1 for g, group in enumerate(self._groups)}
        written = [(content.group, content.cells) for content in self._blocks.values() if content.group != NOBODY]
        found = ((g, cells.get(WHOLE, cells.get(last[g]))) for g, cells in written)
        return {(g, stamp) for g, stamp in found if stamp is not None}

    def ends_of(self, g: int, extra_key: int | None, tokens: Sequence[int]) -> list[int]:
        """The last stamps of the full blocks of these tokens in a group, one behind the other."""
        size = self._groups[g].block_size
        return self._provenance.extend(UNWRITTEN, extra_key, tokens)[size - 1 :: size]

    def copy(self, copies: Iterable[tuple[str, int, int]]) -> None:
        """Copies blocks (pool, source, target); all sources are read before any target is written."""
        read = [((pool, t), self._blocks.get((pool, s), NOTHING)) for pool, s, t in copies]
        self._blocks.update((place, self.copied(content)) for place, content in read)

    def poison(self, pool: str, blocks: Iterable[int]) -> None:
        """Overwrites the content of freed blocks."""
        self._blocks.update(dict.fromkeys(zip(repeat(pool), blocks, strict=False), FREED))

    def reset(self, kept: Collection[Place] = ()) -> None:
        self._blocks = {place: content if place in kept else FREED for place, content in self._blocks.items()}

    def _place(self, g: int, block: int) -> Place:
        return self._groups[g].pool, block

    def _name(self, content: Content, offset: int) -> str:
        """The content of a slot, or of a whole block, in words."""
        stamp = content.cells.get(offset, content.cells.get(WHOLE, content.cells.get(REST)))
        if stamp in MARKS:
            return MARKS[stamp]
        if stamp is None and offset == WHOLE and content.cells:
            return f"KV of group {content.group}"
        if stamp is None:
            return "nothing" if content.group == NOBODY or not content.cells else f"nothing of group {content.group}"
        extra_key, tokens = self._provenance.history(stamp)
        what = "the state behind" if offset == WHOLE or WHOLE in content.cells else "the KV of"
        under = f" under key {extra_key}" if extra_key is not None else ""
        return f"{what} {list(tokens)} in group {content.group}{under}"

    def sketch(self) -> Any:
        """Content of the memory by hashes of histories, whose cost does not grow with their lengths."""
        digests = self._provenance.digests()
        for content in self._blocks.values():
            if content.sketch is None:
                cells = [(o, digests[stamp] if stamp > UNWRITTEN else stamp) for o, stamp in content.cells.items()]
                content.sketch = hash((content.group, *sorted(cells)))
        return frozenset((place, content.sketch) for place, content in self._blocks.items())

    def contents(self) -> Any:
        """Content of the memory, by history, for the fingerprint of a state."""
        return tuple((place, *self.told(content)) for place, content in sorted(self._blocks.items()))

    def told(self, content: Content) -> tuple[Any, ...]:
        """The content of a block by history."""
        return content.group, tuple((o, self.history(stamp)) for o, stamp in sorted(content.cells.items()))

    def shown(self, pool: str, block: int) -> str:
        """The content of a block in words: of the last position in it."""
        return self.in_words(self._blocks.get((pool, block), NOTHING))

    def in_words(self, content: Content) -> str:
        """A content in words: that of its last position, or what is wrong with it."""
        marked = [offset for offset, stamp in content.cells.items() if stamp in LEFT_BY_TRANSFERS]
        return self._name(content, marked[0] if marked else max(content.cells, default=0))

    def known_blocks(self) -> list[Place]:
        """The blocks that were ever written."""
        return sorted(self._blocks)

    def history(self, stamp: int) -> Any:
        """The history that a stamp stands for, which is the same in every run."""
        if stamp <= UNWRITTEN:
            return stamp
        if stamp not in self._histories:
            self._histories[stamp] = self._provenance.history(stamp)
        return self._histories[stamp]
