"""What a fault is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """An implementation that is wrong on purpose, a few lines over the reference.

    `make` is the factory; `shape` the kind of bug; `seen` where it was met (seed, or repository and thread);
    `law` the law expected to catch it.
    """

    id: str
    contract: str
    make: Callable[..., Any]
    shape: str
    seen: tuple[str, ...]
    law: str


def faults_of(contract: str, *rows: tuple[str, Callable[..., Any], str, tuple[str, ...], str]) -> tuple[Fault, ...]:
    """The faults of one contract from (id, make, shape, seen, law)."""
    return tuple(Fault(id_, contract, make, shape, seen, law) for id_, make, shape, seen, law in rows)
