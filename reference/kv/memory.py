"""KV memory with provenance: the content of a slot says everything that it depends on.

The KV of a token depends on all tokens before it, on itself and on the extra key (adapter, salt). A stamp
is a number for exactly that history: equal histories, equal stamps; different histories, different stamps.
"""

from __future__ import annotations

from collections.abc import Sequence

UNWRITTEN = 0
POISON = -1
# What stands in the target of a transfer: until it lands, and where it failed; and where it has failed in front of a
# batch that is not back, with all that was computed from it.
IN_FLIGHT, LOST, VOID = -2, -3, -4
# What a memory of the target's own returns where the parts of one cell do not belong together.
APART = -5


class Provenance:
    """Numbers histories from 1 on, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._stamps: dict[tuple[int, int | None, int], int] = {}
        self._steps: list[tuple[int, int | None, int]] = []
        self._digests = [UNWRITTEN]

    def extend(self, stamp: int, extra_key: int | None, tokens: Sequence[int]) -> list[int]:
        """The stamps of `tokens` after the history `stamp` (UNWRITTEN for none) under one extra key."""
        stamps = []
        for token in tokens:
            step = (stamp, extra_key, token)
            stamp = self._stamps.get(step, UNWRITTEN)
            if stamp == UNWRITTEN:
                self._steps.append(step)
                stamp = self._stamps[step] = len(self._steps)
            stamps.append(stamp)
        return stamps

    def digests(self) -> list[int]:
        """For each stamp a hash of the history that it stands for, the same in every episode of a process."""
        digests = self._digests
        for parent, extra_key, token in self._steps[len(digests) - 1 :]:
            digests.append(hash((digests[parent], extra_key, token)))
        return digests

    def history(self, stamp: int) -> tuple[int | None, tuple[int, ...]]:
        """The extra key and the tokens that a stamp stands for."""
        tokens: list[int] = []
        extra_key: int | None = None
        while stamp > UNWRITTEN:
            stamp, extra_key, token = self._steps[stamp - 1]
            tokens.append(token)
        return extra_key, tuple(reversed(tokens))


class KVMemory:
    """One stamp per slot, for slots of any number. Stands for K and V of all layers."""

    def __init__(self) -> None:
        self._cells: dict[int, int] = {}

    def write(self, slots: Sequence[int], stamps: Sequence[int]) -> None:
        """Stores stamps[i] in slots[i]."""
        self._cells.update(zip(slots, stamps, strict=True))

    def read(self, slots: Sequence[int]) -> list[int]:
        """The stamps in these slots, UNWRITTEN where nothing was stored."""
        return [self._cells.get(slot, UNWRITTEN) for slot in slots]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies slot to slot; all sources are read before any target is written."""
        self.write([target for _, target in pairs], self.read([source for source, _ in pairs]))

    def poison(self, slots: Sequence[int]) -> None:
        """Marks freed slots, so that a later read of them is noticed."""
        self.write(slots, [POISON] * len(slots))
