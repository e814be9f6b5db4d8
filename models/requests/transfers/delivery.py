"""Delivery: the blocks of ended requests that a durable kv_scheduler must store, and those that it has stored."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Owed(NamedTuple):
    """The contents of consecutive full blocks of a request that has ended.

    `first` is the place of the first one in the request's table, `size` the tokens of a block; `where` names the group,
    if there are several.
    """

    rid: str
    blocks: Sequence[Hashable]
    size: int
    first: int = 0
    where: str = ""

    def missing(self, sent: set[Hashable]) -> list[int]:
        """Returns the numbers of the blocks that were never stored."""
        return [number for number, block in enumerate(self.blocks, self.first) if block not in sent]


class Delivery:
    """Remembers the contents of all stores. A block is due `patience` steps after its request has ended."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._sent: set[Hashable] = set()
        self._owed: list[tuple[Owed, int]] = []

    def sent(self, content: Hashable) -> None:
        """A tier gets a block with this content, by a store or from somebody else."""
        self._sent.add(content)

    def owe(self, owed: Owed) -> None:
        """A request has ended by itself, and leaves these blocks to be stored."""
        self._owed.append((owed, self._patience))

    def step(self) -> None:
        """A batch was launched, or the scheduler was polled."""
        self._owed = [(owed, steps - 1) for owed, steps in self._owed]

    def due(self) -> list[tuple[Owed, list[int]]]:
        """Returns what is due now, each with the places of its blocks that were never stored, and forgets it."""
        if not self._owed:
            return []
        due = [owed for owed, steps in self._owed if steps <= 0]
        self._owed = [(owed, steps) for owed, steps in self._owed if steps > 0]
        return [(owed, owed.missing(self._sent)) for owed in due]

    def reset(self) -> None:
        """Forgets all stores and everything owed."""
        self._sent.clear()
        self._owed.clear()
