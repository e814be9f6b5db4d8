"""Moves of rows that are shifts: the last rows of a block to its front, as a window over a sequence slides on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Shifts(NamedTuple):
    """`rows` rows of each block move to its front. `by` has, by block, how far: rows + by is at most a block."""

    rows: int
    by: dict[int, int]


def shifts_of(pairs: Sequence[tuple[int, int]], block_size: int) -> Shifts | None:
    """What shifts these pairs of slots are, source and target; None if they are none.

    Of each block that is named as many rows move, the rows 0, 1 and so on are the targets, and each block has a
    distance of its own.
    """
    moved: dict[int, list[tuple[int, int]]] = {}
    for source, target in pairs:
        moved.setdefault(target // block_size, []).append((source, target))
    counts = {len(rows) for rows in moved.values()}
    by = {}
    for block, rows in moved.items():
        first = block * block_size
        by[block] = rows[0][0] - first
        wanted = [(first + by[block] + i, first + i) for i in range(len(rows))]
        if rows != wanted or by[block] < 1 or by[block] + len(rows) > block_size:
            return None
    return Shifts(counts.pop() if counts else 0, by) if len(counts) < 2 else None
