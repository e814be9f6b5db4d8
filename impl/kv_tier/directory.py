"""A tier on a directory: a chunk is a file, which is written under another name and renamed when its store is done.

A rename is the only step that makes a chunk, so that a process may be ended at any write: what is opened again has the
chunks whose files were renamed, and checks each of them. That holds for the end of a process. A machine that loses its
power may keep a rename and lose the bytes before it; the checksum then says so.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Hashable
from pathlib import Path

from kvlockstep.impl.kv_tier.folder import DiskFolder, Folder, MemoryFolder
from kvlockstep.impl.kv_tier.policies import LRU
from kvlockstep.impl.kv_tier.tier import Tier
from kvlockstep.reference.kv_tier.contract import ChunkRemoved, Key

# Magic, unit, hash, whether there is an extra key, extra key, length and checksum of the bytes. The unit is there since
# a file in the place of another one would be a chunk twice when the directory is opened.
HEADER = struct.Struct("<4sIq?qII")
MAGIC = b"kvt1"
CHUNK, PART = ".chunk", ".part"


class DirectoryTier(Tier):
    """A tier whose chunks are files of `folder`, in memory by default. A unit is the number in a file's name.

    A lookup trusts the index and reads no file; a damaged file is found by the load that reads it, and at opening.
    """

    holds_bytes = can_damage = can_reopen = True

    def __init__(self, units: int, folder: Folder | None = None) -> None:
        super().__init__(units, LRU)
        self._folder = MemoryFolder() if folder is None else folder
        self._open()

    def write(self, plan: Hashable, key: Key, data: bytes) -> None:
        unit = self._plans[plan].units[key]
        self._folder.write(f"{unit}{PART}", packed(unit, key, data))

    def read(self, plan: Hashable, key: Key) -> bytes | None:
        unit = self._plans[plan].units[key]
        found = unpacked(unit, self._folder.read(f"{unit}{CHUNK}"))
        if found is None or found[0] != key:
            if self._unit.get(key) == unit:
                self._drop(key, unit)
            return None
        return found[1]

    def reset(self) -> None:
        # Files first: a crash in the middle of a reset may leave some chunks, and no chunk without its file.
        for _, unit in self._chunks():
            self._folder.remove(f"{unit}{CHUNK}")
        super().reset()

    def damage(self, key: Key, how: str) -> None:
        name = f"{self._unit[key]}{CHUNK}"
        others = [f"{unit}{CHUNK}" for other, unit in self._chunks() if other != key]
        whole = self._folder.read(name)
        match how:
            case "lose":
                self._folder.remove(name)
            case "truncate" if whole:
                self._folder.write(name, whole[: len(whole) - 1])
            case "repeat" if others and (other := self._folder.read(others[0])):
                self._folder.write(name, other)

    def reopen(self) -> None:
        DirectoryTier.__init__(self, self.total, self._folder)

    def _open(self) -> None:
        """Takes over the whole chunks of the folder, and removes everything else."""
        for name in self._folder.names():
            number, dot, kind = name.partition(".")
            unit = int(number) if dot + kind == CHUNK and number.isdecimal() else self.total
            found = unpacked(unit, self._folder.read(name)) if unit < self.total else None
            if found is None:
                self._folder.remove(name)
                continue
            key = found[0]
            self._unit[key], self._key[unit], self._stored[unit] = unit, key, 1
            self._policy.stored(key, unit)
        used = set(self._unit.values())
        self._free = [unit for unit in range(self.total - 1, -1, -1) if unit not in used]

    def _end_store(self, units: dict[Key, int], ok: bool) -> None:
        for unit in units.values():
            if ok:
                self._folder.rename(f"{unit}{PART}", f"{unit}{CHUNK}")
            else:
                self._folder.remove(f"{unit}{PART}")
        super()._end_store(units, ok)

    def _forget(self, key: Key, unit: int) -> None:
        if self._stored[unit]:
            self._folder.remove(f"{unit}{CHUNK}")
        super()._forget(key, unit)

    def _drop(self, key: Key, unit: int) -> None:
        """A chunk was found damaged. The loads that read it keep its unit."""
        for pins in self._pins.values():
            if unit in pins:
                pins.discard(unit)
                self._holds[unit] -= 1
        self._policy.forget(unit)
        self._forget(key, unit)
        if self.announces:
            self._events.append(ChunkRemoved((key,)))


def packed(unit: int, key: Key, data: bytes) -> bytes:
    """A chunk as it stands in its file."""
    extra = key.extra_key
    return HEADER.pack(MAGIC, unit, key.hash, extra is not None, extra or 0, len(data), zlib.crc32(data)) + data


def unpacked(unit: int, packed: bytes | None) -> tuple[Key, bytes] | None:
    """The key and the bytes in a chunk's file, None unless they are whole and the file is that of this unit."""
    if packed is None or len(packed) < HEADER.size:
        return None
    magic, number, hash_, has_extra, extra, length, checksum = HEADER.unpack_from(packed)
    data = packed[HEADER.size :]
    if magic != MAGIC or number != unit or len(data) != length or zlib.crc32(data) != checksum:
        return None
    return Key(hash_, extra if has_extra else None), data


def on_disk(units: int, path: Path) -> DirectoryTier:
    """A tier on a directory of the file system."""
    return DirectoryTier(units, DiskFolder(path))
