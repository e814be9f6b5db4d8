"""Delivery: what a durable kv_scheduler has to store of requests that have ended, and what it has stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Owed(NamedTuple):
    """The full blocks of a request that has ended, each with its stamps; they are stored `steps` steps later."""

    rid: str
    blocks: list[tuple[int, ...]]
    steps: int


class Delivery:
    """Remembers the contents of all stores. A store is due `patience` steps behind the end of its request."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._sent: set[tuple[int, ...]] = set()
        self._owed: list[Owed] = []

    def sent(self, stamps: Iterable[int]) -> None:
        """A tier gets a block with these stamps, by a store or from somebody else."""
        self._sent.add(tuple(stamps))

    def owe(self, rid: str, blocks: Sequence[tuple[int, ...]]) -> None:
        """A request has ended by itself."""
        self._owed.append(Owed(rid, list(blocks), self._patience))

    def step(self) -> None:
        """A batch was launched, or the scheduler was polled."""
        self._owed = [owed._replace(steps=owed.steps - 1) for owed in self._owed]

    def due(self) -> list[tuple[str, list[int]]]:
        """Returns the requests whose stores are due, each with the numbers of its blocks that were never stored."""
        due = [owed for owed in self._owed if owed.steps <= 0]
        self._owed = [owed for owed in self._owed if owed.steps > 0]
        return [(o.rid, [i for i, block in enumerate(o.blocks) if block not in self._sent]) for o in due]

    def reset(self) -> None:
        """What was stored is not right any more, and nothing is owed."""
        self._sent.clear()
        self._owed.clear()
