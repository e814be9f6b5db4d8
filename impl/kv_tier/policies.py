"""Eviction policies over the units that may be evicted: LRU and ARC.

A policy knows only the evictable units. What a plan or a pin holds leaves it and comes back as used last, so that an
eviction never walks over what it cannot take. Order is an OrderedDict of units: its moves are one call of C, where a
linked list over arrays takes five stores in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator
from typing import Protocol

from kvlockstep.reference.kv_tier.contract import Key

Order = OrderedDict[int, None]


class Policy(Protocol):
    """The order in which units are evicted."""

    def __len__(self) -> int:
        """The number of units that may be evicted."""

    def stored(self, key: Key, unit: int) -> None:
        """The unit has a new chunk, which may be evicted."""

    def hold(self, unit: int) -> None:
        """The unit may not be evicted now."""

    def unhold(self, unit: int) -> None:
        """The unit may be evicted again; it was used."""

    def use(self, unit: int) -> None:
        """The chunk of a unit, evictable or held, was used."""

    def victims(self, n: int, spared: Container[int]) -> list[int]:
        """The next `n` units to evict, without the spared ones; fewer if there are fewer. Changes nothing."""

    def evicted(self, key: Key, unit: int) -> None:
        """A unit that may be evicted has lost its chunk to another one."""

    def forget(self, unit: int) -> None:
        """The chunk of a unit, evictable or held, is gone, and no other one is the reason."""


class LRU:
    """The least recently used first."""

    def __init__(self, units: int) -> None:
        self._order: Order = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def stored(self, key: Key, unit: int) -> None:
        self._order[unit] = None

    def hold(self, unit: int) -> None:
        self._order.pop(unit, None)

    def unhold(self, unit: int) -> None:
        self._order[unit] = None

    def use(self, unit: int) -> None:
        if unit in self._order:
            self._order.move_to_end(unit)

    def victims(self, n: int, spared: Container[int]) -> list[int]:
        return _first(n, self._order, spared)

    def evicted(self, key: Key, unit: int) -> None:
        del self._order[unit]

    def forget(self, unit: int) -> None:
        self._order.pop(unit, None)


class ARC:
    """Adaptive replacement (Megiddo and Modha, 2003): chunks used once and chunks used again, in two orders.

    `_target` is how many of the first kind to keep. Keys that were evicted a short while ago move it: one that comes
    back to the first order says that it was too short, one of the second order the same of the second.
    """

    def __init__(self, units: int) -> None:
        self._units = units
        self._target = 0.0
        self._once: Order = OrderedDict()
        self._again: Order = OrderedDict()
        self._frequent = bytearray(units)
        self._ghosts: tuple[OrderedDict[Key, None], OrderedDict[Key, None]] = (OrderedDict(), OrderedDict())

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def stored(self, key: Key, unit: int) -> None:
        once, again = self._ghosts
        self._frequent[unit] = key in once or key in again
        if key in once:
            self._target = min(self._units, self._target + max(1.0, len(again) / len(once)))
            del once[key]
        elif key in again:
            self._target = max(0.0, self._target - max(1.0, len(once) / len(again)))
            del again[key]
        self.unhold(unit)

    def hold(self, unit: int) -> None:
        (self._again if self._frequent[unit] else self._once).pop(unit, None)

    def unhold(self, unit: int) -> None:
        (self._again if self._frequent[unit] else self._once)[unit] = None

    def use(self, unit: int) -> None:
        if unit in self._again:
            self._again.move_to_end(unit)
        elif unit in self._once:
            del self._once[unit]
            self._again[unit] = None
        self._frequent[unit] = 1

    def victims(self, n: int, spared: Container[int]) -> list[int]:
        once = _first(n, self._once, spared)
        again = _first(n, self._again, spared)
        left, found = len(self._once), list[int]()
        for _ in range(min(n, len(once) + len(again))):
            if once and (left > self._target or not again):
                found.append(once.pop(0))
                left -= 1
            else:
                found.append(again.pop(0))
        return found

    def evicted(self, key: Key, unit: int) -> None:
        ghosts = self._ghosts[self._frequent[unit]]
        self.hold(unit)
        ghosts[key] = None
        if len(ghosts) > self._units:
            ghosts.popitem(last=False)

    def forget(self, unit: int) -> None:
        self.hold(unit)


def _first(n: int, order: Order, spared: Container[int]) -> list[int]:
    found: list[int] = []
    units: Iterator[int] = iter(order)
    while len(found) < n:
        unit = next(units, -1)
        if unit < 0:
            break
        if unit not in spared:
            found.append(unit)
    return found
