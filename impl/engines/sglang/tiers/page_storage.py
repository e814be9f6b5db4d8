"""A storage of pages by their hashes, in place of SGLang's backends: the least recently used page goes first."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.reference.kv.transfers import TierUnits

STORAGE = "storage"


class Storage:
    """Pages by their hashes, in `units`; `units_of` are those that are stored, the least recently used first."""

    def __init__(self, units: int) -> None:
        self.size = units
        self.clear()

    def clear(self) -> None:
        self.free = list(range(self.size))
        self.units_of: dict[str, int] = {}
        self.writing: dict[str, int] = {}
        self.readers: Counter[int] = Counter()

    def batch_exists(self, keys: Sequence[str], _extra_info: Any = None) -> int:
        """The engine asks how many of the first pages are there."""
        return len(self.found(keys))

    def found(self, keys: Sequence[str]) -> list[int]:
        """The units of the pages in front of the first one that is not stored. This counts as a use of them."""
        found = list(itertools.takewhile(self.units_of.__contains__, keys))
        for key in reversed(found):
            self.units_of[key] = self.units_of.pop(key)
        return [self.units_of[key] for key in found]

    def begin_write(self, key: str) -> int | None:
        """A unit for a page, with an eviction if there is none free; None if all are in use."""
        if not self.free:
            victim = next((key for key, unit in self.units_of.items() if not self.readers[unit]), None)
            if victim is None:
                return None
            self.free.append(self.units_of.pop(victim))
        self.writing[key] = self.free.pop(0)
        return self.writing[key]

    def end_write(self, key: str, ok: bool) -> None:
        """Ends a write: the page can be found if it is `ok`."""
        unit = self.writing.pop(key)
        if ok:
            self.units_of[key] = unit
        else:
            self.free.append(unit)

    def forget(self, key: str) -> None:
        """Forgets a page that could not be read."""
        self.free.append(self.units_of.pop(key))

    def units(self) -> TierUnits:
        """What became of each unit."""
        pinned = [unit for unit, readers in self.readers.items() if readers]
        return TierUnits(self.free, list(self.units_of.values()), list(self.writing.values()), pinned)
