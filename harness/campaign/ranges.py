"""A set of whole numbers that takes as much memory as it has gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Ranges:
    """Numbers from 0 on, kept as sorted half-open ranges that do not touch."""

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in pairs:
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def pairs(self) -> list[tuple[int, int]]:
        """The ranges, each as (first, one past the last)."""
        return list(zip(self._starts, self._ends, strict=True))

    def first_missing(self, start: int = 0) -> int:
        """The lowest number from `start` on that is not in the set."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def add(self, number: int) -> None:
        """Puts a number in. Raises ValueError if it is there already."""
        at = bisect_right(self._starts, number)
        if at and number < self._ends[at - 1]:
            raise ValueError(f"{number} is there already")
        joins_left = at > 0 and self._ends[at - 1] == number
        joins_right = at < len(self._starts) and self._starts[at] == number + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif joins_left:
            self._ends[at - 1] = number + 1
        elif joins_right:
            self._starts[at] = number
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
