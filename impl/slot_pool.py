"""slot_pool on a bitmap of 1,024-bit words, under a summary with one bit for each word that has a free slot.

An operation touches one word, and one summary word when that word empties or gets its first free slot: 1,048,576 slots
take one level of summary, so the cost is the same at 64 and at 1,000,000 slots.
"""

from __future__ import annotations

from kvlockstep.reference.errors import InvalidArgument, NotFree, NotHeld, OutOfSlots, UnknownSlot

_SHIFT = 10
_BITS = 1 << _SHIFT
_MASK = _BITS - 1
_BIT = [1 << i for i in range(_BITS)]


class SlotPool:
    """`slots` numbered slots, all free at first, handed out lowest first. Source: seed 000, SlotAllocator.

    Making a pool is O(slots). Raises InvalidArgument if `slots` is negative.
    """

    def __init__(self, slots: int) -> None:
        if slots < 0:
            raise InvalidArgument(f"slots={slots}: a pool cannot have a negative size")
        self._slots = slots
        self._count = slots
        self._versions = [0] * slots
        self._words = _all_ones(slots)
        self._summaries: list[list[int]] = []
        level = self._words
        while len(level) > 1:
            level = _all_ones(len(level))
            self._summaries.append(level)
        self._lowest = 0

    @property
    def free_count(self) -> int:
        """Number of free slots."""
        return self._count

    def alloc(self) -> int:
        """Takes the lowest free slot and raises its version. Raises OutOfSlots if none is free."""
        if not self._count:
            raise OutOfSlots(f"alloc: all {self._slots} slots are held")
        index = self._lowest
        word = self._words[index]
        bit = word & -word
        self._words[index] = word ^ bit
        self._count -= 1
        if word == bit:
            self._emptied(index)
        slot = (index << _SHIFT) + bit.bit_length() - 1
        self._versions[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        """Gives a held slot back; its version stands. Raises UnknownSlot, or NotHeld if it is free already."""
        self._check(slot)
        index, bit = slot >> _SHIFT, _BIT[slot & _MASK]
        word = self._words[index]
        if word & bit:
            raise NotHeld(f"free: slot={slot} is free already")
        self._words[index] = word | bit
        self._count += 1
        if not word:
            self._filled(index)

    def occupy(self, slot: int) -> None:
        """Takes one named free slot and keeps its version. Raises UnknownSlot, or NotFree if the slot is held."""
        self._check(slot)
        index, bit = slot >> _SHIFT, _BIT[slot & _MASK]
        word = self._words[index]
        if not word & bit:
            raise NotFree(f"occupy: slot={slot} is held")
        self._words[index] = word ^ bit
        self._count -= 1
        if word == bit:
            self._emptied(index)

    def is_free(self, slot: int) -> bool:
        """True if the slot is free. Raises UnknownSlot."""
        self._check(slot)
        return bool(self._words[slot >> _SHIFT] & _BIT[slot & _MASK])

    def version(self, slot: int) -> int:
        """Counts the allocations of the slot. Raises UnknownSlot."""
        self._check(slot)
        return self._versions[slot]

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self._slots:
            raise UnknownSlot(f"slot={slot} is not one of 0..{self._slots - 1}")

    def _emptied(self, index: int) -> None:
        """Word `index` has no free slot left: clears its summary bits and finds the lowest word again."""
        was_lowest = index == self._lowest
        for level in self._summaries:
            index, bit = index >> _SHIFT, _BIT[index & _MASK]
            level[index] ^= bit
            if level[index]:
                break
        if was_lowest and self._count:
            self._lowest = self._find_lowest()

    def _filled(self, index: int) -> None:
        """Word `index` has a free slot again."""
        if index < self._lowest or self._count == 1:
            self._lowest = index
        for level in self._summaries:
            index, bit = index >> _SHIFT, _BIT[index & _MASK]
            word = level[index]
            level[index] = word | bit
            if word:
                break

    def _find_lowest(self) -> int:
        index = 0
        for level in reversed(self._summaries):
            word = level[index]
            index = (index << _SHIFT) + (word & -word).bit_length() - 1
        return index


def _all_ones(bits: int) -> list[int]:
    """Words with `bits` ones, lowest first."""
    full, rest = divmod(bits, _BITS)
    return [(1 << _BITS) - 1] * full + ([(1 << rest) - 1] if rest else [])
