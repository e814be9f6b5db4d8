"""Targets of ours that need torch or numpy, which the extra `torch` brings."""

from __future__ import annotations

from types import TracebackType

from kvlockstep.core.errors import UsageError

PACKAGES = ("torch", "numpy")
OURS = __name__.partition(".")[0]


class ExtraMissing(UsageError):
    """A target needs a package that only an extra of kvlockstep installs."""


def missing_extra(target: str, error: BaseException | None) -> ExtraMissing | None:
    """The error to raise instead, if a module of ours did not find torch or numpy; else None.

    Where a module of the user's does not find them, its own error says more.
    """
    if not isinstance(error, ModuleNotFoundError) or not _imported_by_us(error.__traceback__):
        return None
    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        return None
    return ExtraMissing(f"target {target!r} needs {package}: pip install 'kvlockstep[torch]'")


def _imported_by_us(trace: TracebackType | None) -> bool:
    importer = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        # The last frames may be those of the import machinery itself.
        if not name.startswith("importlib"):
            importer = name
        trace = trace.tb_next
    return importer.partition(".")[0] == OURS
