"""Parts that the pictures of both request contracts share: slots by holder, requests, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.picture import CACHED, FREE, HELD, Cell, Picture, Table, numbers, text
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.errors import ContractError


def picture_of_requests(
    judge: Any,
    tables: Mapping[str, Any],
    requests: Iterable[tuple[str, ...]],
    counters: Iterable[tuple[str, str]],
    extra: tuple[Table, ...],
) -> Picture:
    """The slots by the `tables` that name them, rows of `requests`, `counters` and `extra` tables."""
    size = judge.traits.block_size
    owners: dict[int, list[str]] = {}
    serves: dict[int, list[str]] = {}
    for name, table in tables.items():
        for position, slot in enumerate(table if isinstance(table, (list, tuple)) else ()):
            owners.setdefault(slot, []).append(name)
            serves.setdefault(slot, []).append(f"{name} position {position}")
    free = answer_of(judge.adapter.free_slots)
    free_slots = set(free) if isinstance(free, (list, tuple, set, range)) else set()
    slots = sorted({*owners, *free_slots, *(slot for slot, _ in judge.memory.contents())})
    cells = {}
    for slot, content in zip(slots, judge.memory.shown(slots), strict=True):
        state = HELD if slot in owners else FREE if slot in free_slots else CACHED
        holders = tuple(owners.get(slot, ()))
        cells[slot] = Cell(state, holders, len(holders), content, tuple(serves.get(slot, ())))
    held = len({slot // size for slot in owners}) * size
    counted = (
        ("avail", text(answer_of(judge.adapter.avail))),
        *counters,
        ("slots of held blocks", str(held)),
        ("total", str(judge.traits.total)),
    )
    columns = ("request", "tokens", "phase", "key", "slots")
    return Picture(
        "slot",
        cells,
        (Table("requests", columns, tuple(requests)), *extra, Table("counters", ("counter", "value"), counted)),
        size,
    )


def answer_of(call: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a query, or its error as text, since a picture judges nothing."""
    try:
        answer = call(*args)
        return (
            answer if isinstance(answer, (int, list, tuple, set, range, Mapping, type(None))) else list(bounded(answer))
        )
    except (Exception, ContractError) as error:
        return f"{type(error).__name__}: {error}"


def phase(request: Request) -> str:
    """Describes how many tokens of a request are computed, and how many reserved."""
    pending = f", {request.pending} reserved" if request.pending else ""
    return f"{request.computed} of {len(request.tokens)} computed{pending}"


def key_text(key: Any) -> str:
    """An extra key, nothing for none."""
    return "" if key is None else str(key)


def table_text(table: Any) -> str:
    """A block table, or the error that came instead of it."""
    return numbers(table) if isinstance(table, (list, tuple)) else text(table)
