"""Answers of operations on a request contract, and their texts in a trace line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.whole import whole
from kvlockstep.reference.kv_scheduler.contract import Item

# Of a longer list only the number of the others is shown.
MOST_SHOWN = 4


class Answer(NamedTuple):
    """The answer of an operation. Its text is the end of a trace line.

    `cached` are the tokens of a prefix hit, for an admission that was granted; `text` is anything else worth showing.
    """

    refused: bool = False
    cached: int | None = None
    text: str = ""

    def __str__(self) -> str:
        if self.refused:
            return "refused"
        return self.text or "done" if self.cached is None else f"cached {self.cached}"

    @classmethod
    def parse(cls, text: str) -> Answer:
        """Reads the text of an answer; a text of no known form is kept as it is."""
        verb, _, number = text.partition(" ")
        if verb == "cached" and number.isdecimal():
            return cls(cached=int(number))
        return cls(refused=True) if text == "refused" else cls(text="" if text == "done" else text)


DONE = Answer()
REFUSED = Answer(refused=True)


def batch_text(items: Sequence[Item], copies: str, preempted: Iterable[str]) -> str:
    """A batch as text: the positions that it computes of each request, its copies, and who was preempted for it."""
    parts = [f"{item.rid}[{item.start}:{item.start + item.n}]" for item in items]
    return " ".join([*parts, *([copies] if copies else []), *(f"preempted {name}" for name in preempted)]) or "nothing"


def copies_text(pairs: Sequence[tuple[int, int]]) -> str:
    """The copies of a step as text, adjacent slots as a range: "copied slots 0-3 to 8-11"; empty if there are none."""
    runs: list[list[int]] = []
    for source, target in pairs:
        if runs and source == runs[-1][0] + runs[-1][2] and target == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([source, target, 1])
    texts = [
        f"slot {source} to {target}" if n == 1 else f"slots {source}-{source + n - 1} to {target}-{target + n - 1}"
        for source, target, n in runs
    ]
    return f"copied {_few(texts)}" if texts else ""


def units_of(found: Iterable[int | None], n: int) -> list[int | None]:
    """The answer to an offer of n blocks: a unit for each, or None. Raises ValueError if there are not n of them."""
    units = [None if unit is None else whole(unit) for unit in bounded(found)]
    if len(units) != n:
        raise ValueError(units)
    return units


def released_text(blocks: Iterable[int]) -> str:
    """The blocks that nobody holds any more, as text: "released blocks 1, 2"; empty if there are none."""
    numbers = [str(block) for block in sorted(blocks)]
    return f"released block{'' if len(numbers) == 1 else 's'} {_few(numbers)}" if numbers else ""


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_SHOWN
    return ", ".join(texts) if more <= 0 else f"{', '.join(texts[:MOST_SHOWN])} and {more} more"
