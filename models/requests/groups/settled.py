"""What was found between two operations of a target with groups, so that the next look need not begin anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvlockstep.models.requests.groups.answers import Held, Tables


class Occupied(NamedTuple):
    """Blocks of a pool that requests surely hold, by group and in all, and how many they may hold at most."""

    surely: dict[int, set[int]]
    blocks: set[int]
    most: int

    @property
    def unsure(self) -> int:
        return self.most - len(self.blocks)


class Settled(NamedTuple):
    """What was found between two operations. What is the same at the next look was checked then."""

    tables: Tables
    held: Held
    occupied: dict[str, Occupied]
    free: Mapping[str, list[int]]


NOT_SETTLED = Settled({}, {}, {}, {})
