"""Iterables that a target returns, read up to a bound: an iterator of a target may have no end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

# Of an iterable of unknown length so much is read. No answer has so many elements but those that list a large pool.
MOST_READ = 100_000
# These end: they have all their elements.
FINITE = frozenset({list, tuple, set, frozenset, dict, str, bytes})


class TooMany(Exception):
    """An answer goes on after the elements that it could have."""

    def __init__(self, most: int, what: str = "elements") -> None:
        super().__init__(f"more than {most:,} {what}")


def bounded(values: Any, most: int = MOST_READ, what: str = "elements") -> Iterable[Any]:
    """Returns the values, as a list if their type does not say that they end. Raises TooMany, or like `iter`."""
    if type(values) in FINITE:
        ended: Iterable[Any] = values
        return ended
    found = list(islice(values, most + 1))
    if len(found) > most:
        raise TooMany(most, what)
    return found


def bounded_dict(values: Any) -> dict[Any, Any]:
    """As `dict` of a mapping or of pairs. Raises TooMany, or like `dict`."""
    return dict(values) if hasattr(values, "keys") else {key: value for key, value in bounded(values)}  # noqa: C416
