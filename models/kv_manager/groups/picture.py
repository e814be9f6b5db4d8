"""A state of a kv_manager with groups as a picture: the blocks of each pool, and a lane of slots for each group."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, FREE, HELD, Cell, Picture, Table, numbers, text
from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
from kvlockstep.models.requests.groups.session import named
from kvlockstep.models.requests.picture import answer_of, key_text, phase
from kvlockstep.reference.kv_manager.groups.contract import needed

# What is not held, in a lane.
GAP = "-"


def picture_of_groups(judge: GroupedJudge) -> Picture:
    """Blocks by pool, the requests, a lane of slots for each group, the counters of each pool."""
    requests = [(r.name, numbers(r.tokens), phase(r), key_text(r.extra_key)) for r in judge.live.values()]
    requests += [(r.name, numbers(r.tokens), "preempted", key_text(r.extra_key)) for r in judge.preempted.values()]
    tables = [Table("requests", ("request", "tokens", "phase", "key"), tuple(requests))]
    tables += [_lane(judge, g) for g in range(len(judge.groups.groups))]
    tables.append(Table("pools", ("pool", "total", "avail", "free_now", "shown as blocks"), tuple(_counters(judge))))
    return Picture("block", _cells(judge), tuple(tables))


def _lane(judge: GroupedJudge, g: int) -> Table:
    """The slots of each request in a group, those that the next forward reads, or the blocks of its state."""
    rows = []
    for name, request in judge.live.items():
        held = answer_of(judge.adapter.held, name, g)
        if g in judge.groups.states:
            rows.append((name, "", numbers(held if isinstance(held, list) else [held])))
            continue
        table = answer_of(judge.adapter.slots, name, g)
        shown = table if isinstance(table, (list, tuple)) else [table]
        read = needed(judge.groups.groups[g], request.computed, request.computed)
        reads = f"{read.start} to {read.stop - 1}" if read else GAP
        rows.append((name, reads, numbers(GAP if slot is None else slot for slot in shown)))
    return Table(named(judge, g), ("request", "reads positions", "slots"), tuple(rows))


def _counters(judge: GroupedJudge) -> list[tuple[str, ...]]:
    answers = answer_of(judge.groups.avail), answer_of(judge.groups.free_now)
    rows: list[tuple[str, ...]] = []
    first = 0
    for pool, total in judge.groups.pools.items():
        counts = (text(n[pool] if isinstance(n, dict) else n) for n in answers)
        rows.append((pool, str(total), *counts, f"{first} to {first + total - 1}"))
        first += total
    return rows


def _cells(judge: GroupedJudge) -> dict[int, Cell]:
    """The blocks of all pools in one row: those of the first pool by their numbers, then those of the next."""
    cells: dict[int, Cell] = {}
    first = 0
    free = answer_of(judge.groups.free)
    for pool, total in judge.groups.pools.items():
        known = {block for name, block in judge.kv.known_blocks() if name == pool}
        empty = set(free.get(pool, ()) if isinstance(free, dict) else ())
        held: dict[int, list[str]] = {}
        for name in judge.live:
            for g in [g for g, group in enumerate(judge.groups.groups) if group.pool == pool]:
                blocks = answer_of(judge.adapter.held, name, g)
                for block in blocks if isinstance(blocks, (list, tuple, set)) else ():
                    held.setdefault(block, []).append(f"{name} in group {g}")
        for block in sorted(known | empty | set(held)):
            holders = tuple(held.get(block, ()))
            state = HELD if holders else FREE if block in empty else CACHED
            cells[first + block] = Cell(state, holders, len(holders), judge.kv.shown(pool, block))
        first += total
    return cells
