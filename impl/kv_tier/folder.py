"""A folder of files, on disk or in memory: the few calls that a tier on files makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Folder(Protocol):
    """Files by name. A process that is ended leaves every call done, not done, or a write done in part."""

    def names(self) -> list[str]:
        """The names of all files."""

    def write(self, name: str, data: bytes) -> None:
        """Makes or replaces a file."""

    def read(self, name: str) -> bytes | None:
        """The bytes of a file, None if there is none."""

    def rename(self, name: str, other: str) -> None:
        """Renames a file, at once; it takes the place of another one of that name."""

    def remove(self, name: str) -> None:
        """Removes a file, if there is one."""


class DiskFolder:
    """A folder of the file system, which is made if it is not there. Raises OSError where the file system does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return os.listdir(self._path)

    def write(self, name: str, data: bytes) -> None:
        (self._path / name).write_bytes(data)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def rename(self, name: str, other: str) -> None:
        (self._path / name).replace(self._path / other)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class MemoryFolder:
    """The same in memory: a run makes thousands of tiers, and some of their processes are ended by force."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def names(self) -> list[str]:
        return list(self._files)

    def write(self, name: str, data: bytes) -> None:
        self._files[name] = data

    def read(self, name: str) -> bytes | None:
        return self._files.get(name)

    def rename(self, name: str, other: str) -> None:
        self._files[other] = self._files.pop(name)

    def remove(self, name: str) -> None:
        self._files.pop(name, None)
