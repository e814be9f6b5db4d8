"""Faults of slot_pool."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import NotFree, OutOfSlots, UnknownSlot
from kvlockstep.reference.slot_pool import SlotPool


@fault("pool-occupy-toggles", law="no_aliasing", seen=("seed 000",))
class OccupyToggles(SlotPool):
    """Occupying a slot that is already held frees it."""

    def occupy(self, slot: int) -> None:
        if slot not in self._slots:
            raise self._unknown(slot)
        self._free ^= {slot}


@fault("pool-free-unchecked", law="no_double_free", seen=("seed 000",))
class FreeUnchecked(SlotPool):
    """free checks nothing: it accepts free slots and slots outside the pool."""

    def free(self, slot: int) -> None:
        self._free.add(slot)


@fault("pool-free-foreign", law="no_double_free", seen=("seed 000",))
class FreeTakesForeign(SlotPool):
    """free accepts a slot outside the pool."""

    def free(self, slot: int) -> None:
        if slot in self._free:
            super().free(slot)
        self._free.add(slot)


@fault("pool-occupy-bumps", law="version_monotone", seen=("seed 000",))
class OccupyBumpsVersion(SlotPool):
    """Occupying a slot raises its version, so a slot that is reused in place looks stale."""

    def occupy(self, slot: int) -> None:
        super().occupy(slot)
        self._versions[slot] += 1


@fault("pool-version-stands", law="version_monotone", seen=("seed 000",))
class AllocKeepsVersion(SlotPool):
    """Allocating a slot leaves its version as it was, so an old reference looks current."""

    def alloc(self) -> int:
        slot = super().alloc()
        self._versions[slot] -= self._versions[slot] > 1
        return slot


@fault("pool-highest-first", law="agreement", seen=("mutant",))
class AllocHighest(SlotPool):
    """alloc returns the highest free slot instead of the lowest."""

    def alloc(self) -> int:
        if not self._free:
            raise OutOfSlots("none free")
        slot = max(self._free)
        self._free.remove(slot)
        self._versions[slot] += 1
        return slot


@fault("pool-keeps-one", law="admission_honesty", seen=("llama.cpp#10873",))
class KeepsOneBack(SlotPool):
    """alloc refuses while one slot is still free."""

    def alloc(self) -> int:
        if len(self._free) <= 1 < len(self._versions):
            raise OutOfSlots("none free")
        return super().alloc()


@fault("pool-count-drifts", law="atomicity", seen=("mutant",))
class CountDrifts(SlotPool):
    """A refused free raises the count of free slots."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._count = slots

    @property
    def free_count(self) -> int:
        return self._count

    def alloc(self) -> int:
        slot = super().alloc()
        self._count -= 1
        return slot

    def occupy(self, slot: int) -> None:
        super().occupy(slot)
        self._count -= 1

    def free(self, slot: int) -> None:
        self._count += 1
        try:
            super().free(slot)
        except UnknownSlot:
            self._count -= 1
            raise


@fault("pool-refusal-frees", law="atomicity", seen=("mutant",))
class RefusedOccupyFrees(SlotPool):
    """A refused occupy frees the slot."""

    def occupy(self, slot: int) -> None:
        try:
            super().occupy(slot)
        except NotFree:
            self._free.add(slot)
            raise


@fault("pool-alloc-held", law="no_aliasing", seen=("vllm#42571",))
class AllocTakesHeld(SlotPool):
    """With no slot free, alloc hands out a held slot."""

    def alloc(self) -> int:
        slot = super().alloc()
        if self._versions[slot] > 1 and slot + 1 < len(self._versions) and slot + 1 not in self._free:
            self._free.add(slot)
            self._versions[slot] -= 1
            slot += 1
            self._versions[slot] += 1
        return slot


@fault("pool-occupy-foreign", law="conservation", seen=("seed 000",))
class OccupyTakesForeign(SlotPool):
    """Occupying a slot outside the pool adds it to the free slots."""

    def occupy(self, slot: int) -> None:
        if slot not in self._slots:
            self._free.add(slot)
            return
        super().occupy(slot)


@fault("pool-full-minus-one", law="conservation", seen=("seed 000",))
class FullIsMinusOne(SlotPool):
    """With no slot free, alloc returns -1 instead of raising OutOfSlots."""

    def alloc(self) -> int:
        return super().alloc() if self._free else -1


@fault("pool-free-again", law="no_double_free", seen=("rtp-llm#591",))
class SecondFreeIgnored(SlotPool):
    """Freeing a free slot is silently accepted."""

    def free(self, slot: int) -> None:
        if slot not in self._free:
            super().free(slot)


@fault("pool-full-forgets", law="conservation", seen=("shape: falsy",))
class FreeOfFullForgets(SlotPool):
    """A slot freed while the pool is full is lost, because an empty free list counts as none."""

    def free(self, slot: int) -> None:
        some = bool(self._free)
        super().free(slot)
        if not some:
            self._free.clear()


@fault("pool-negative-shift", law="error_contract", seen=("seed 000",))
class NegativeShift(SlotPool):
    """A negative slot number raises the ValueError of a bit shift, not an error of the contract."""

    def free(self, slot: int) -> None:
        if slot < 0:
            raise ValueError("negative shift count")
        super().free(slot)


@fault("pool-occupy-uncounted", law="accounting", seen=("xllm#829",))
class OccupiedUncounted(CountDrifts):
    """Occupying a slot does not lower the count of free slots."""

    def free(self, slot: int) -> None:
        SlotPool.free(self, slot)
        self._count += 1

    def occupy(self, slot: int) -> None:
        SlotPool.occupy(self, slot)
