"""What a block holds: the stamps of one group, by offset, or one state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.models.requests.slot_memory import LEFT_BY_TRANSFERS
from kvlockstep.reference.kv.memory import APART, POISON, UNWRITTEN, Provenance

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

    def sketched(self, digests: Sequence[int]) -> int:
        """Makes the sketch, with the hash of the history of each stamp."""
        cells = [(offset, digests[stamp] if stamp > UNWRITTEN else stamp) for offset, stamp in self.cells.items()]
        self.sketch = hash((self.group, *sorted(cells)))
        return self.sketch

    def copied(self) -> Content:
        """Returns a copy, whose sketch is to be made."""
        return Content(self.group, dict(self.cells))

    @property
    def left(self) -> dict[int, int]:
        """The mark that a transfer has left in the block, as a cell that stays beside later writes."""
        mark = self.cells.get(REST, self.cells.get(WHOLE, UNWRITTEN))
        return {REST: mark} if mark in LEFT_BY_TRANSFERS else {}


NOTHING = Content(NOBODY, {})
FREED = Content(NOBODY, {WHOLE: POISON})


class Histories:
    """The histories that the stamps of a memory stand for, in words and as values."""

    def __init__(self, provenance: Provenance) -> None:
        self._provenance = provenance
        self._found: dict[int, Any] = {}

    def history(self, stamp: int) -> Any:
        """The history that a stamp stands for, which is the same in every run."""
        if stamp <= UNWRITTEN:
            return stamp
        if stamp not in self._found:
            self._found[stamp] = self._provenance.history(stamp)
        return self._found[stamp]

    def told(self, content: Content) -> tuple[Any, ...]:
        """The content of a block by history."""
        return content.group, tuple((o, self.history(stamp)) for o, stamp in sorted(content.cells.items()))

    def in_words(self, content: Content) -> str:
        """A content in words: that of its last position, or what is wrong with it."""
        marked = [offset for offset, stamp in content.cells.items() if stamp in LEFT_BY_TRANSFERS]
        return self.name(content, marked[0] if marked else max(content.cells, default=0))

    def name(self, content: Content, offset: int) -> str:
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
