"""Files that are there whole or not at all, also after a crash or on a full disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kvlockstep.core.errors import UsageError


def require_writable(directory: Path) -> None:
    """Raises UsageError unless files can be written into the directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to directory {directory}: {error.strerror}; choose another with --dir"
        ) from error


def write_whole(path: Path, text: str, durable: bool = True) -> None:
    """Puts a file in the place of `path`, on the disk before this returns if `durable`. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        try:
            _write(handle, text)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def _write(handle: int, text: str) -> int:
    """Writes all of the text and returns the number of bytes."""
    data = text.encode()
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
    return len(data)


def sync_directory(directory: Path) -> None:
    """Makes renames and removals in the directory durable, where a directory can be opened: not on Windows."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Journal:
    """A file to which lines are only added; a line that a crash cut off is removed."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = len(whole_lines(path.read_bytes()))
        os.ftruncate(self._handle, self.size)
        sync_directory(path.parent)

    def append(self, text: str) -> None:
        """Adds lines, on the disk before this returns. After an OSError some of them may be there."""
        self.size += _write(self._handle, text)
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def whole_lines(data: bytes) -> bytes:
    """The data up to its last line end."""
    return data[: data.rfind(b"\n") + 1]
