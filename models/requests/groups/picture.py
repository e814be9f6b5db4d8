"""Parts of the pictures of targets with groups: the blocks of each pool, and a lane of slots for each group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvlockstep.models.core.picture import CACHED, FREE, HELD, Cell, Table, numbers, text
from kvlockstep.models.requests.groups.session import GroupSession, named
from kvlockstep.models.requests.picture import answer_of
from kvlockstep.models.requests.request import Request
from kvlockstep.reference.kv_manager.groups.contract import needed

# What is not held, in a lane.
GAP = "-"


def lanes(session: GroupSession, adapter: Any, requests: Mapping[str, Request]) -> list[Table]:
    """For each group the slots of each request, and those that the next forward reads, or the blocks of its state."""
    return [_lane(session, adapter, requests, g) for g in range(len(session.groups.groups))]


def counters(session: GroupSession, columns: Mapping[str, Callable[[], Mapping[str, int]]]) -> Table:
    """The numbers of each pool, and where its blocks stand in the picture."""
    answers = [answer_of(ask) for ask in columns.values()]
    rows: list[tuple[str, ...]] = []
    first = 0
    for pool, total in session.groups.pools.items():
        counts = (text(n[pool] if isinstance(n, dict) else n) for n in answers)
        rows.append((pool, str(total), *counts, f"{first} to {first + total - 1}"))
        first += total
    return Table("pools", ("pool", "total", *columns, "shown as blocks"), tuple(rows))


def cells(session: GroupSession, adapter: Any, names: list[str]) -> dict[int, Cell]:
    """The blocks of all pools in one row: those of the first pool by their numbers, then those of the next."""
    found: dict[int, Cell] = {}
    first = 0
    free = answer_of(session.groups.free)
    for pool, total in session.groups.pools.items():
        known = {block for name, block in session.kv.known_blocks() if name == pool}
        empty = set(free.get(pool, ()) if isinstance(free, dict) else ())
        held: dict[int, list[str]] = {}
        for name in names:
            for g in [g for g, group in enumerate(session.groups.groups) if group.pool == pool]:
                blocks = answer_of(adapter.held, name, g)
                for block in blocks if isinstance(blocks, (list, tuple, set)) else ():
                    held.setdefault(block, []).append(f"{name} in group {g}")
        for block in sorted(known | empty | set(held)):
            holders = tuple(held.get(block, ()))
            state = HELD if holders else FREE if block in empty else CACHED
            found[first + block] = Cell(state, holders, len(holders), session.kv.shown(pool, block))
        first += total
    return found


def _lane(session: GroupSession, adapter: Any, requests: Mapping[str, Request], g: int) -> Table:
    rows = []
    for name, request in requests.items():
        held = answer_of(adapter.held, name, g)
        if g in session.groups.states:
            rows.append((name, "", numbers(held if isinstance(held, list) else [held])))
            continue
        table = answer_of(adapter.slots, name, g)
        shown = table if isinstance(table, (list, tuple)) else [table]
        read = needed(session.groups.groups[g], request.computed, request.computed)
        reads = f"{read.start} to {read.stop - 1}" if read else GAP
        rows.append((name, reads, numbers(GAP if slot is None else slot for slot in shown)))
    return Table(named(session, g), ("request", "reads positions", "slots"), tuple(rows))
