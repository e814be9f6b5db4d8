"""What targets print in a child process: kept for a while, and shown with the step that fails.

A child writes its output to a file that its parent made, that of compiled code and of its own children included. A
driver empties it at each episode, and the replay of a trace at each step, which costs a tenth of the fastest steps. So
output does not flood the terminal, and if the target ends the process, its last words are still there.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, TypeVar

from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.models.core.safe_text import safe_text

MOST_LINES = 20
MOST_BYTES = 1 << 16
STDOUT, STDERR = 1, 2

M = TypeVar("M", bound=type[Model[Any]])


class Capture:
    """The file, or nothing if output is shown. Its offset belongs to both processes; the parent does not move it."""

    def __init__(self, shown: bool = False) -> None:
        self._file = None if shown else tempfile.TemporaryFile()  # noqa: SIM115

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def begin(self) -> None:
        """Has this process, a child, write its output to the file. Nothing is buffered that a crash would lose."""
        global _current  # noqa: PLW0603
        _current = self
        if self._file is None:
            return
        for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
            os.dup2(self._file.fileno(), number)
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, errors="backslashreplace", write_through=True))

    def forget(self) -> None:
        """Empties the file."""
        if self._file is not None and os.lseek(number := self._file.fileno(), 0, os.SEEK_CUR):
            os.ftruncate(number, 0)
            os.lseek(number, 0, os.SEEK_SET)

    def lines(self) -> tuple[str, ...]:
        """The last lines in the file, behind one that says how much there is if that is not all."""
        if self._file is None:
            return ()
        size = os.fstat(self._file.fileno()).st_size
        data = os.pread(self._file.fileno(), MOST_BYTES, max(0, size - MOST_BYTES))
        lines = [safe_text(line.rstrip()) for line in data.decode(errors="replace").splitlines()]
        if size <= MOST_BYTES and len(lines) <= MOST_LINES:
            return tuple(lines)
        return (f"... the last {MOST_LINES} lines of {size:,} bytes:", *lines[-MOST_LINES:])


# That of this process, if it is a child.
_current: Capture | None = None
_shown = False


@contextlib.contextmanager
def output_shown() -> Iterator[None]:
    """In the block targets print where this process does, and nothing is captured."""
    global _shown  # noqa: PLW0603
    before, _shown = _shown, True
    try:
        yield
    finally:
        _shown = before


def shows_output() -> bool:
    """Tells whether targets print where this process does."""
    return _shown


def new_capture() -> Capture:
    """A capture for a child that is to be forked."""
    return Capture(_shown)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """In the block nothing that Python code prints here is shown, unless output is."""
    if _shown:
        yield
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def forget_output() -> None:
    """Begins an episode of a driver: nothing that was printed before is of interest."""
    if _current is not None:
        _current.forget()


def printing(model_type: M) -> M:
    """The model, with each violation knowing what its step has printed; itself in a process that captures nothing."""
    if _current is None:
        return model_type
    capture: Capture = _current

    class Printing(model_type):  # type: ignore[misc,valid-type]
        def __init__(self, scope: Scope, factory: Factory) -> None:
            capture.forget()
            try:
                super().__init__(scope, factory)
            except Divergence as divergence:
                divergence.printed = capture.lines()
                raise

        def step(self, op: Op) -> Any:
            capture.forget()
            try:
                return step(self, op)
            except Divergence as divergence:
                divergence.printed = capture.lines()
                raise

    step = model_type.step
    return Printing  # type: ignore[return-value]
