"""KV memory of several groups: what stands in each block, and whether it is what a request must read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.models.requests.groups.content import FREED, NOBODY, NOTHING, REST, WHOLE, Content, Histories, Place
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.reference.kv.memory import UNWRITTEN, Provenance
from kvlockstep.reference.kv_manager.groups.contract import Group


@dataclass(slots=True)
class PoolMemory:
    """What stands in the blocks of one pool, by their numbers.

    `writers` has who wrote a cell, (block, offset), in this forward, and which stamp; `owner` who last wrote a block.
    """

    contents: dict[int, Content] = field(default_factory=dict)
    writers: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    owner: dict[int, str] = field(default_factory=dict)


class GroupMemory:
    """What stands in each block. A write of another group, or of a state, replaces all that stood in a block."""

    granularity = "slot"
    sparing = False

    def __init__(self, groups: Sequence[Group], goals_met: Counter[str]) -> None:
        self._groups = groups
        self._provenance = Provenance()
        self.histories = Histories(self._provenance)
        self._goals_met = goals_met
        self._pools = {group.pool: PoolMemory() for group in groups}
        # The pool of each group, which is asked for at every cell.
        self._pool = [self._pools[group.pool] for group in groups]
        # What was right since anything changed, by request and group: the first position, the slots, and their stamps.
        # Much is read twice, in the forward and behind it.
        self._right: dict[tuple[str, int], tuple[int, Sequence[int | None], Sequence[int]]] = {}

    def begin_forward(self) -> None:
        for pool in self._pools.values():
            pool.writers.clear()

    end_forward = begin_forward

    def stamps(self, request: Request, stop: int) -> list[int]:
        """The stamps of at least `stop` tokens of a request, known and drafted ones."""
        return request.stamped(self._provenance, stop)

    def write(
        self, request: Request, g: int, slots: Sequence[int | None], positions: range, stamps: Sequence[int]
    ) -> tuple[int, str] | None:
        """Writes the stamps of those of these positions that have a slot; returns the slot of a conflict, and who wrote
        it first. `stamps` are those of the request, from position 0 on.
        """
        size, writers = self._groups[g].block_size, self._pool[g].writers
        open_block, cells = NOBODY, dict[int, int]()
        for position in positions:
            slot = slots[position] if position < len(slots) else None
            if slot is None:
                continue
            block, offset = divmod(slot, size)
            other, written = writers.setdefault((block, offset), (request.name, stamps[position]))
            if written != stamps[position]:
                return slot, other
            if block != open_block:
                open_block, cells = block, self._open(request.name, g, block, offset)
            cells[offset] = written
            if len(cells) > size:
                # Every slot is written anew: nothing of the transfer is left.
                del cells[REST]
        return None

    def save(self, request: Request, g: int, position: int, block: int) -> str | None:
        """Saves the state behind so many tokens; returns the first writer of a conflict."""
        stamp = self.stamps(request, position)[position - 1]
        other, written = self._pool[g].writers.setdefault((block, WHOLE), (request.name, stamp))
        if written != stamp:
            return other
        self._open(request.name, g, block, WHOLE)[WHOLE] = stamp
        return None

    def _open(self, name: str, g: int, block: int, offset: int) -> dict[int, int]:
        """The cells of a block that a request is about to write to, a cell of the group or its whole state."""
        pool = self._pool[g]
        content = pool.contents.get(block, NOTHING)
        if content.group != g or (WHOLE in content.cells) != (offset == WHOLE):
            content = self._begin(g, block, offset)
        content.sketch = None
        self._right.clear()
        if pool.owner.setdefault(block, name) != name:
            self._goals_met["physical_reuse"] += 1
            pool.owner[block] = name
        return content.cells

    def _begin(self, g: int, block: int, offset: int) -> Content:
        """Starts a block anew for a group; only the mark of a transfer stays."""
        contents = self._pool[g].contents
        left = {} if offset == WHOLE else contents.get(block, NOTHING).left
        content = contents[block] = Content(g, left)
        return content

    def mark(self, cells: Iterable[tuple[int, Place, int]], mark: int) -> None:
        """A mark of a transfer is written to these cells, (group, block, offset)."""
        self._right.clear()
        for g, (_, block), offset in cells:
            content = self._pool[g].contents.get(block, NOTHING)
            if content.group != g or offset == WHOLE:
                content = self._begin(g, block, offset)
            content.write(offset, mark)

    def remark(self, old: int, new: int) -> None:
        """Changes a mark of transfers to another one, wherever it stands."""
        self._right.clear()
        for content in self.written:
            for offset in [offset for offset, stamp in content.cells.items() if stamp == old]:
                content.write(offset, new)

    @property
    def written(self) -> Iterable[Content]:
        """The contents of all blocks that were ever written."""
        return [content for pool in self._pools.values() for content in pool.contents.values()]

    def content(self, place: Place) -> Content:
        """What a transfer reads in a block."""
        return self._stands(place).copied()

    def put(self, place: Place, content: Content) -> None:
        """What a transfer leaves in a block."""
        pool, block = place
        self._pools[pool].contents[block] = content.copied()
        self._right.clear()

    def _stands(self, place: Place) -> Content:
        pool, block = place
        return self._pools[pool].contents.get(block, NOTHING)

    def first_wrong(
        self, request: Request, g: int, slots: Sequence[int | None], positions: range, stamps: Sequence[int]
    ) -> Cell | None:
        """The first of these positions that does not hold what it must; `stamps` as for `write`."""
        size, contents = self._groups[g].block_size, self._pool[g].contents
        block, cells = NOBODY, dict[int, int]()
        named, want = slots[positions.start : positions.stop], stamps[positions.start : positions.stop]
        if self._was_right(request.name, g, positions, named, want):
            return None
        for slot, stamp in zip(named, want, strict=True):
            assert slot is not None
            if slot // size != block:
                block = slot // size
                content = contents.get(block, NOTHING)
                cells = content.cells if content.group == g else {}
            if cells.get(slot % size) != stamp:
                # A stamp stands for all tokens up to its own, so no request has one twice.
                return self._wrong_cell(request, g, slot, stamps.index(stamp), stamp)
        self._right[request.name, g] = positions.start, named, want
        return None

    def _was_right(
        self, name: str, g: int, positions: range, slots: Sequence[int | None], stamps: Sequence[int]
    ) -> bool:
        """Tells whether these slots were read for these stamps, and nothing has changed since."""
        first, known_slots, known_stamps = self._right.get((name, g), (0, (), ()))
        part = slice(positions.start - first, positions.stop - first)
        return positions.start >= first and known_slots[part] == slots and known_stamps[part] == stamps

    def _wrong_cell(self, request: Request, g: int, slot: int, position: int, stamp: int) -> Cell:
        block, offset = divmod(slot, self._groups[g].block_size)
        got = self.histories.name(self._pool[g].contents.get(block, NOTHING), offset)
        want = self.histories.name(Content(g, {offset: stamp}), offset)
        writer = self._pool[g].writers.get((block, offset), (None, 0))[0]
        return Cell(position, slot, block, got, want, position < request.hit, writer == request.name, writer)

    def wrong_state(self, request: Request, g: int, block: int) -> tuple[str, str] | None:
        """What stands in a block and what must, if it is not the state behind all that the request has computed."""
        right = Content(g, {WHOLE: self.stamps(request, request.computed)[request.computed - 1]})
        content = self._pool[g].contents.get(block, NOTHING)
        return None if content == right else (self.histories.name(content, WHOLE), self.histories.name(right, WHOLE))

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
        written = [(content.group, content.cells) for content in self.written if content.group != NOBODY]
        found = ((g, cells.get(WHOLE, cells.get(last[g]))) for g, cells in written)
        return {(g, stamp) for g, stamp in found if stamp is not None}

    def ends_of(self, g: int, extra_key: int | None, tokens: Sequence[int]) -> list[int]:
        """The last stamps of the full blocks of these tokens in a group, one behind the other."""
        size = self._groups[g].block_size
        return self._provenance.extend(UNWRITTEN, extra_key, tokens)[size - 1 :: size]

    def copy(self, copies: Iterable[tuple[str, int, int]]) -> None:
        """Copies blocks (pool, source, target); all sources are read before any target is written."""
        for pool, target, content in [(pool, t, self._stands((pool, s)).copied()) for pool, s, t in copies]:
            self._pools[pool].contents[target] = content
            self._right.clear()

    def poison(self, pool: str, blocks: Iterable[int]) -> None:
        """Overwrites the content of freed blocks."""
        contents = self._pools[pool].contents
        lost = [block for block in blocks if contents.get(block) is not FREED]
        if lost:
            contents.update(dict.fromkeys(lost, FREED))
            self._right.clear()

    def reset(self, kept: Collection[Place] = ()) -> None:
        self._right.clear()
        for name, pool in self._pools.items():
            pool.contents.update({block: FREED for block in pool.contents if (name, block) not in kept})

    def sketch(self) -> Any:
        """Content of the memory by hashes of histories, whose cost does not grow with their lengths."""
        digests = self._provenance.digests()
        sketches: list[int] = []
        for pool in self._pools.values():
            blocks, contents = sorted(pool.contents), pool.contents
            sketches += len(blocks), *blocks
            sketches += [contents[block].sketch or contents[block].sketched(digests) for block in blocks]
        return tuple(sketches)

    def contents(self) -> Any:
        """Content of the memory, by history, for the fingerprint of a state."""
        return tuple((place, *self.histories.told(self._stands(place))) for place in self.known_blocks())

    def shown(self, pool: str, block: int) -> str:
        """The content of a block in words: of the last position in it."""
        return self.histories.in_words(self._stands((pool, block)))

    def known_blocks(self) -> list[Place]:
        """The blocks that were ever written."""
        return sorted((name, block) for name, pool in self._pools.items() for block in pool.contents)
