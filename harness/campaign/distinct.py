"""Count of the different states that a campaign has met, in bounded memory.

Wegman's adaptive sampling: it keeps only the hashes that end in enough zero bits. The count does not depend on the
order in which states are added.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

MOST_KEPT = 4_096


class Distinct:
    """Counts different 32-bit hashes: exactly up to MOST_KEPT, beyond that with a standard error of some 2 %."""

    def __init__(self, hashes: Iterable[int] = (), level: int = 0) -> None:
        self.level = level
        self.kept: set[int] = set()
        self.add(hashes)

    def add(self, hashes: Iterable[int]) -> None:
        """Takes over hashes; those that it has met already change nothing."""
        self.kept.update(number for number in hashes if self._stays(number))
        while len(self.kept) > MOST_KEPT:
            self.level += 1
            self.kept = {number for number in self.kept if self._stays(number)}

    @property
    def count(self) -> int:
        return len(self.kept) << self.level

    def _stays(self, number: int) -> bool:
        return not number & ((1 << self.level) - 1)


def state_hash(state: Any) -> int:
    """32 bits that are the same in every process, whatever its hash seed. Sets may stand in tuples at any depth."""
    return zlib.crc32(_text(state).encode())


def _text(value: Any) -> str:
    if isinstance(value, frozenset | set):
        return f"{{{','.join(sorted(map(_text, value)))}}}"
    if isinstance(value, tuple | list):
        return f"({','.join(map(_text, value))})"
    return repr(value)
