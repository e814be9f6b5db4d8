"""Integers that a target returns, whatever type they have."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, TypeGuard

from kvlockstep.models.core.bounded import bounded


def whole(value: Any) -> int:
    """Returns a number as an int. Raises TypeError, ValueError or OverflowError for half a slot, None, text or bool."""
    if isinstance(value, bool):
        raise TypeError(f"{value} is not a number")
    try:
        return int(index(value))
    except TypeError:
        found = int(value)
        if found != value:
            raise TypeError(f"{value!r} is not a whole number") from None
        return found


def place(value: Any) -> int:
    """Returns the number of a slot or a block as an int. Raises as `whole`, and ValueError for one below 0."""
    found = whole(value)
    if found < 0:
        raise ValueError(f"{found} is below 0")
    return found


def wholes(values: Iterable[Any]) -> list[int]:
    """Returns numbers as a new list of ints. Raises like `whole` and `bounded`."""
    return values.copy() if are_ints(values) else [whole(value) for value in bounded(values)]


def wholes_at_once(values: Any) -> list[int]:
    """As `wholes`; a tensor or an array comes in one transfer. Raises like `whole`, also for nested numbers."""
    return wholes(values.tolist() if hasattr(values, "tolist") else values)


def are_ints(values: Any) -> TypeGuard[list[int]]:
    """Returns whether this is a list of ints and of nothing else."""
    # A look at each takes ten times as long as the sum, which is an int only if all of them are.
    try:
        return type(values) is list and type(sum(values)) is int
    except Exception:
        # Whatever a target has put there may be added to in a way of its own.
        return False
