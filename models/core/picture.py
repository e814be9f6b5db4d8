"""Pictures of one state, as data: the holders of each slot or block, and the tables that lead there.

A picture is plain text and numbers, so that it can leave the process of the target. Each model draws its own; the code
that shows a picture needs to know nothing of the contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

HELD, CACHED, FREE, UNKNOWN = "held", "cached", "free", "unknown"
CALLER = "caller"
# Longer texts make a page too wide to compare two states.
LONGEST_TEXT = 240


class Cell(NamedTuple):
    """A slot or block. `state` is held, cached (by nobody held), free or unknown; `content` is in words.

    `serves`: the position of each holder that it stands for, where that is known.
    """

    state: str
    holders: tuple[str, ...] = ()
    references: int = 0
    content: str = ""
    serves: tuple[str, ...] = ()


class Table(NamedTuple):
    """Rows of text; the first column names the row. Without columns the rows are lines of a drawing."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Picture(NamedTuple):
    """One state. `unit` is slot or block; `group` slots make a block."""

    unit: str
    cells: dict[int, Cell]
    tables: tuple[Table, ...]
    group: int = 1


NOTHING = Picture("slot", {}, ())


def numbers(values: Iterable[Any]) -> str:
    """The values in a row, a dash for none."""
    return text(" ".join(map(str, values)) or "-")


def text(value: Any) -> str:
    """The value as text, cut after LONGEST_TEXT characters."""
    shown = str(value)
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def fields_table(title: str, view: Any) -> Table:
    """A view as a table of its fields, for a contract that draws nothing of its own."""
    if isinstance(view, Mapping):
        rows = [(str(key), text(value)) for key, value in view.items()]
    elif hasattr(view, "_fields"):
        rows = [(name, text(getattr(view, name))) for name in view._fields]
    else:
        rows = [("value", text(view))]
    return Table(title, ("field", "value"), tuple(rows))
