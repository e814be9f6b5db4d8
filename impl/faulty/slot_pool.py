"""Faults of slot_pool."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import NotFree, OutOfSlots, UnknownSlot
from kvlockstep.reference.slot_pool import SlotPool


class OccupyToggles(SlotPool):
    def occupy(self, slot: int) -> None:
        if slot not in self._slots:
            raise self._unknown(slot)
        self._free ^= {slot}


class FreeUnchecked(SlotPool):
    def free(self, slot: int) -> None:
        self._free.add(slot)


class FreeTakesForeign(SlotPool):
    def free(self, slot: int) -> None:
        if slot in self._free:
            super().free(slot)
        self._free.add(slot)


class OccupyBumpsVersion(SlotPool):
    def occupy(self, slot: int) -> None:
        super().occupy(slot)
        self._versions[slot] += 1


class AllocKeepsVersion(SlotPool):
    def alloc(self) -> int:
        slot = super().alloc()
        self._versions[slot] -= self._versions[slot] > 1
        return slot


class AllocHighest(SlotPool):
    def alloc(self) -> int:
        if not self._free:
            raise OutOfSlots("none free")
        slot = max(self._free)
        self._free.remove(slot)
        self._versions[slot] += 1
        return slot


class KeepsOneBack(SlotPool):
    def alloc(self) -> int:
        if len(self._free) <= 1 < len(self._versions):
            raise OutOfSlots("none free")
        return super().alloc()


class CountDrifts(SlotPool):
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


class RefusedOccupyFrees(SlotPool):
    def occupy(self, slot: int) -> None:
        try:
            super().occupy(slot)
        except NotFree:
            self._free.add(slot)
            raise


class AllocTakesHeld(SlotPool):
    def alloc(self) -> int:
        slot = super().alloc()
        if self._versions[slot] > 1 and slot + 1 < len(self._versions) and slot + 1 not in self._free:
            self._free.add(slot)
            self._versions[slot] -= 1
            slot += 1
            self._versions[slot] += 1
        return slot


class OccupyTakesForeign(SlotPool):
    """A slot outside the mask becomes a free one when it is occupied."""

    def occupy(self, slot: int) -> None:
        if slot not in self._slots:
            self._free.add(slot)
            return
        super().occupy(slot)


class FullIsMinusOne(SlotPool):
    """With no slot free the answer is -1."""

    def alloc(self) -> int:
        return super().alloc() if self._free else -1


class SecondFreeIgnored(SlotPool):
    """Freeing a free slot is taken for done."""

    def free(self, slot: int) -> None:
        if slot not in self._free:
            super().free(slot)


class FreeOfFullForgets(SlotPool):
    """A free list without a slot is taken for no free list, and the slot that comes back is lost."""

    def free(self, slot: int) -> None:
        some = bool(self._free)
        super().free(slot)
        if not some:
            self._free.clear()


class NegativeShift(SlotPool):
    """Naming a slot below 0 fails in the arithmetic of the mask."""

    def free(self, slot: int) -> None:
        if slot < 0:
            raise ValueError("negative shift count")
        super().free(slot)


class OccupiedUncounted(CountDrifts):
    """The counter of free slots does not go down when a slot is occupied."""

    def free(self, slot: int) -> None:
        SlotPool.free(self, slot)
        self._count += 1

    def occupy(self, slot: int) -> None:
        SlotPool.occupy(self, slot)


FAULTS = faults_of(
    "slot_pool",
    ("pool-occupy-toggles", OccupyToggles, "occupying a held slot frees it", ("seed 000",), "no_aliasing"),
    ("pool-free-unchecked", FreeUnchecked, "a foreign or free slot can be freed", ("seed 000",), "no_double_free"),
    ("pool-free-foreign", FreeTakesForeign, "a foreign slot can be freed", ("seed 000",), "no_double_free"),
    ("pool-occupy-bumps", OccupyBumpsVersion, "in-place reuse makes itself stale", ("seed 000",), "version_monotone"),
    ("pool-version-stands", AllocKeepsVersion, "a reallocated slot looks current", ("seed 000",), "version_monotone"),
    ("pool-highest-first", AllocHighest, "another policy than the contract's", ("mutant",), "agreement"),
    ("pool-keeps-one", KeepsOneBack, "refuses with a slot free", ("llama.cpp#10873",), "admission_honesty"),
    ("pool-count-drifts", CountDrifts, "a refused free raises the counter", ("mutant",), "atomicity"),
    (
        "pool-refusal-frees",
        RefusedOccupyFrees,
        "a refused occupy frees the slot",
        ("mutant",),
        "atomicity",
    ),
    ("pool-alloc-held", AllocTakesHeld, "a held slot is handed out", ("vllm#42571",), "no_aliasing"),
    ("pool-occupy-foreign", OccupyTakesForeign, "a foreign slot becomes free", ("seed 000",), "conservation"),
    ("pool-full-minus-one", FullIsMinusOne, "full is answered with -1", ("seed 000",), "conservation"),
    ("pool-free-again", SecondFreeIgnored, "a second free is ignored", ("rtp-llm#591",), "no_double_free"),
    ("pool-full-forgets", FreeOfFullForgets, "empty is taken for none", ("shape: falsy",), "conservation"),
    ("pool-negative-shift", NegativeShift, "an error of the arithmetic", ("seed 000",), "error_contract"),
    ("pool-occupy-uncounted", OccupiedUncounted, "one way of taking is not counted", ("xllm#829",), "accounting"),
)
