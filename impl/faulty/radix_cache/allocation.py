"""Faults of radix_cache: allocating and freeing slots."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.radix_cache import RadixCache


@fault("radix-one-answer", law="write_isolation", seen=("mutant",))
class AnswersOneArray(RadixCache):
    """Every allocation returns the same array, so a later one changes an earlier answer."""

    def reset(self) -> None:
        self._answer: list[int] = []
        super().reset()

    def allocate(self, n: int) -> list[int]:
        self._answer[:] = super().allocate(n)
        return self._answer


@fault("radix-slots-pages", law="conservation", seen=("seed 001",))
class PagesAreSlots(RadixCache):
    """An allocation returns as many slots as tokens, not whole pages."""

    def allocate(self, n: int) -> list[int]:
        return super().allocate(n)[:n]


@fault("radix-free-only", law="admission_honesty", seen=("sglang#36770",))
class AllocatesFreeOnly(RadixCache):
    """An allocation that would need an eviction is refused."""

    def allocate(self, n: int) -> list[int]:
        if n > len(self._free) * self._size:
            raise OutOfSlots("no free page")
        return super().allocate(n)


@fault("radix-refusal-evicts", law="atomicity", seen=("mutant",))
class EvictsBeforeItRefuses(RadixCache):
    """A refused allocation has already evicted everything evictable."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots:
            evictable, _ = self._tree.counts()
            super().evict(evictable * self._size)
            raise


@fault("radix-free-front", law="agreement", seen=("mutant",))
class FreesInFront(RadixCache):
    """Freed pages go to the front of the free list, so the last one freed is reused first."""

    def _release(self, pages: list[int]) -> None:
        self._held.difference_update(pages)
        self._free[:0] = pages


@fault("radix-allocates-negative", law="conservation", seen=("seed 001",))
class AllocatesNegative(RadixCache):
    """Allocating a negative number of tokens drops slots from the end of the free list."""

    def allocate(self, n: int) -> list[int]:
        if n >= 0 or not self._free:
            return super().allocate(n)
        pages, self._free = self._free[:n], self._free[n:]
        self._held.update(pages)
        return self._slots(pages)


@fault("radix-allocates-less", law="conservation", seen=("seed 001",))
class AllocatesWhatThereIs(RadixCache):
    """With too few slots free, an allocation returns a shorter array."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots:
            return super().allocate(len(self._free) * self._size)


@fault("radix-allocate-asserts", law="error_contract", seen=("seed 001",))
class AllocateAsserts(RadixCache):
    """An allocation that eviction cannot serve raises AssertionError."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots as error:
            raise AssertionError("cannot evict enough") from error
