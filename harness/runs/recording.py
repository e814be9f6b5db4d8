"""What the recorders of live targets share: the trace file, which has its header first and its end last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace, header_line
from kvlockstep.models.core.model import Scope


class Recording:
    """Stands for a live target. What it does not wrap is the target's own; `close`, or leave the `with` block, to end
    the trace. Raises UsageError if the file cannot be written.
    """

    def __init__(self, target: Any, path: Path | str, buffer: int = -1) -> None:
        self._target = target
        self._written = 0
        try:
            self._file = Path(path).open("w", buffer)  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot write trace {path}: {error.strerror}; record to another path") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def close(self) -> None:
        """Writes the end of the trace."""
        if not self._file.closed:
            self._file.write(json.dumps({"end": self._written}) + "\n")
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begin(self, contract: str, scope: Scope) -> None:
        self._file.write(header_line(Trace(contract, scope, ())) + "\n")

    def _write(self, lines: Sequence[str]) -> None:
        self._file.write("".join(lines))
        self._written += len(lines)


def op_line(operation: str, answer: str = "", **args: Any) -> str:
    """The line of an operation, with its answer if that says something."""
    return json.dumps({"op": operation, "args": args, **({"answer": answer} if answer else {})}) + "\n"
