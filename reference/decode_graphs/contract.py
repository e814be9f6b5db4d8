"""The contract of decode_graphs: errors, statuses, what a target must offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from kvlockstep.reference.errors import ContractError

NO_BLOCK = -1
DONE, REFUSED, FULL = 1, 2, 3


class NotCaptured(ContractError, RuntimeError):
    """No graph of this size was captured."""


class StaleGraph(ContractError, RuntimeError):
    """The graph was captured before the table moved to other memory; capture it again."""


class Lane(NamedTuple):
    """Result of a replay in one lane: DONE, REFUSED (no block was left) or FULL (the table was full).

    The context is what attention then reads: the stamps of the row's tokens, with the new one if DONE.
    """

    status: int
    context: list[int]


@runtime_checkable
class DecodeGraphsTarget(Protocol):
    """Factory `make(rows, width, blocks, block_size)`. A decode step as captured graphs, one for each batch size."""

    @property
    def num_free(self) -> int: ...
    def admit(self, row: int, stamps: Sequence[int]) -> None: ...
    def release(self, row: int) -> None: ...
    def widen(self, width: int) -> None: ...
    def begin_capture(self, lanes: int) -> None: ...
    def end_capture(self) -> None: ...
    def replay(self, lanes: int, rows: Sequence[int], stamps: Sequence[int]) -> None: ...
    def collect(self) -> Sequence[Lane]: ...
    def tables(self) -> Sequence[Sequence[int]]: ...
    def lengths(self) -> Sequence[int]: ...
    def free_blocks(self) -> Sequence[int]: ...
    def memory(self) -> Sequence[int]: ...
