"""Types of the arguments of operations, as a trace has them.

A model executes operations; its `operations` has their names with the types of their arguments. Several commands may
propose the same operation, and one operation may be several calls of the target.
"""

from __future__ import annotations

from typing import Any


class Size(int):
    """The type of an argument that says how many things a model makes, at most MOST_MADE."""


MOST_MADE = 1_000
Arguments = dict[str, Any]
Ints = list[int]
Pairs = list[tuple[int, int]]
MOVES: Arguments = {"pairs": Pairs}

# A running engine may have other extra keys than our numbers; a recorded trace has them as they were.
ANY_KEY = int | str | None
