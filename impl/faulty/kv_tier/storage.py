"""Faults of a tier that holds the bytes itself."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_tier.directory import CHUNK, HEADER, DirectoryTier, packed, unpacked
from kvlockstep.reference.kv_tier.contract import Key, LoadPlan
from kvlockstep.reference.kv_tier.tier import KVTier


@fault("tier-no-rename", law="crash_consistency", seen=("mutant",))
class NoRename(DirectoryTier):
    """A chunk is written under its final name, so a crash in the middle of a store leaves some chunks."""

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        super().write(plan, key, data)
        unit = self._plans[plan].units[key]
        self._folder.write(f"{unit}{CHUNK}", packed(unit, key, data))


@fault("tier-index-in-memory", law="crash_consistency", seen=("mutant",))
class IndexInMemory(DirectoryTier):
    """The index is not rebuilt from the files when the directory is opened."""

    def _open(self) -> None:
        for name in self._folder.names():
            self._folder.remove(name)
        super()._open()


@fault("tier-length-unchecked", law="whole_or_none", seen=("mutant",))
class LengthUnchecked(DirectoryTier):
    """A file that was truncated is handed out as far as it goes."""

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        stored = self._folder.read(f"{self._plans[plan].units[key]}{CHUNK}")
        return super().read(plan, key) if stored is None else stored[HEADER.size :]


@fault("tier-header-unchecked", law="whole_or_none", seen=("mutant",))
class HeaderUnchecked(DirectoryTier):
    """A file is checked by its own checksum, and not by the key that was asked for."""

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        stored = self._folder.read(f"{self._plans[plan].units[key]}{CHUNK}")
        number = HEADER.unpack_from(stored)[1] if stored and len(stored) >= HEADER.size else 0
        found = unpacked(number, stored)
        return super().read(plan, key) if found is None else found[1]


@fault("tier-one-reader", law="whole_or_none", seen=("LMCache#2898",))
class OneReader(DirectoryTier):
    """A second load of a chunk at the same time reads nothing, for the first one has its file open."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._readers: dict[int, Hashable] = {}

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        unit = self._plans[plan].units[key]
        first = self._readers.setdefault(unit, plan)
        return super().read(plan, key) if first == plan else None

    def complete(self, plan: Hashable, ok: bool) -> None:
        super().complete(plan, ok)
        self._readers = {unit: first for unit, first in self._readers.items() if self._holds[unit]}


@fault("tier-reads-late", law="whole_or_none", seen=("mutant",))
class ReadsLate(KVTier):
    """A load holds no unit, and still reads only when it is completed, when another chunk may be there."""

    holds_bytes = True
    loads_hold = False

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._bytes: dict[int, bytes] = {}
        self._loads: dict[Hashable, Mapping[Key, int]] = {}

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        plan = super().load(keys, owner)
        if plan is not None:
            self._loads[plan.id] = plan.units
            super().complete(plan.id, True)
        return plan

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        self._bytes[self._plans[plan].units[key]] = data

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        return self._bytes[self._loads[plan][key]]
