"""Progress of a check, for the console that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvlockstep.runs.results import DriverResult


@dataclass(frozen=True)
class Progress:
    """One message of a check.

    `kind` is begin or end of a driver, progress within it (`steps` so far), shrink (`steps` operations of a trace), or
    note (`text`). `result` comes with end.
    """

    kind: str
    contract: str
    target: str
    driver: str = ""
    steps: int = 0
    result: DriverResult | None = None
    text: str = ""


Emit = Callable[[Progress], None]


def silent(_progress: Progress) -> None:
    """The consumer that shows nothing."""
