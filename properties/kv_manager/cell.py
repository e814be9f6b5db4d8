"""A slot as a request reads it, which the laws of content look at."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """Position `position` of a request, read from `slot` of `block`: `got` is its content, `want` the right one.

    `hit`: the position was a prefix hit. `writer`: who wrote the slot in this forward. `own`: the reader wrote it.
    `origin`: where the content came from, if a copy or a reset left it there. `also`: the other positions, of this
    request or of another, that the slot serves.
    """

    position: int
    slot: int
    block: int
    got: str
    want: str
    hit: bool
    own: bool
    writer: str | None
    origin: str = ""
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f"slot {self.slot} of block {self.block}"
        where += f", also {' and '.join(self.also)}" if self.also else ""
        came = f": {self.origin}" if self.origin and self.writer is None else ""
        return f"position {self.position} ({where}) holds {self.got}, not {self.want}{came}"
