"""slot_pool: hands out numbered KV slots, lowest first. Source: seed 000, SlotAllocator."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from kvlockstep.reference.errors import InvalidArgument, NotFree, NotHeld, OutOfSlots, UnknownSlot


@runtime_checkable
class SlotPoolTarget(Protocol):
    """Factory `make(slots)`. Source: seed 000, SlotAllocator."""

    @property
    def free_count(self) -> int: ...
    def alloc(self) -> int: ...
    def free(self, slot: int) -> None: ...
    def occupy(self, slot: int) -> None: ...
    def is_free(self, slot: int) -> bool: ...
    def version(self, slot: int) -> int: ...


class SlotPool:
    """`slots` numbered slots, all free at first, each with a version that counts its allocations.

    Raises InvalidArgument if `slots` is negative.
    """

    def __init__(self, slots: int) -> None:
        if slots < 0:
            raise InvalidArgument(f"slots={slots}: a pool cannot have a negative size")
        self._slots = range(slots)
        self._free = set(self._slots)
        self._versions = [0] * slots

    @property
    def free_count(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def alloc(self) -> int:
        """Takes the lowest free slot and raises its version. Raises OutOfSlots if none is free."""
        if not self._free:
            raise OutOfSlots(f"alloc: all {len(self._versions)} slots are held")
        slot = min(self._free)
        self._free.remove(slot)
        self._versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        """Gives a held slot back; its version stands. Raises UnknownSlot, or NotHeld if it is free already."""
        if slot not in self._slots:
            raise self._unknown(slot)
        if slot in self._free:
            raise NotHeld(f"free: slot={slot} is free already")
        self._free.add(slot)

    def occupy(self, slot: int) -> None:
        """Takes one named free slot and keeps its version, so that its content stays valid.

        Raises UnknownSlot, or NotFree if the slot is held.
        """
        if slot not in self._slots:
            raise self._unknown(slot)
        if slot not in self._free:
            raise NotFree(f"occupy: slot={slot} is held")
        self._free.remove(slot)

    def is_free(self, slot: int) -> bool:
        """True if the slot is free. Raises UnknownSlot."""
        if slot not in self._slots:
            raise self._unknown(slot)
        return slot in self._free

    def version(self, slot: int) -> int:
        """Counts the allocations of the slot. Raises UnknownSlot."""
        if slot not in self._slots:
            raise self._unknown(slot)
        return self._versions[slot]

    def _unknown(self, slot: int) -> UnknownSlot:
        return UnknownSlot(f"slot={slot} is not one of 0..{len(self._slots) - 1}")
