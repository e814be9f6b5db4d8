"""A state of a kv_tier as a picture."""

from __future__ import annotations

from kvlockstep.models.core.picture import CACHED, FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.models.kv_tier.books import Books, Plan
from kvlockstep.properties.kv_tier import Pool, named


def picture(books: Books, pool: Pool) -> Picture:
    """Each unit with its chunk and who holds it, and the plans in flight."""
    chunk_of = {unit: key for key, unit in books.chunks.items()}
    cells = {}
    for unit in range(books.total):
        plans = [plan for plan in books.in_flight.values() if unit in plan.units.values()]
        holders = [_name(plan) for plan in plans]
        holders += [f"pin of {owner}" for owner, key in sorted(books.pins, key=str) if books.chunks.get(key) == unit]
        keys = [chunk_of[unit]] if unit in chunk_of else [k for p in plans for k, u in p.units.items() if u == unit]
        state = HELD if holders else CACHED if unit in chunk_of else FREE if unit in pool.free else UNKNOWN
        cells[unit] = Cell(state, tuple(holders), len(holders), named(keys[:1]) if keys else "")
    rows = [(_name(plan), named(list(plan.units)), numbers(plan.units.values())) for plan in books.in_flight.values()]
    counters = (("free units", numbers(sorted(pool.free))), ("avail", str(pool.avail)))
    return Picture(
        "unit",
        cells,
        (
            Table("plans in flight", ("plan", "keys", "units"), tuple(rows)),
            Table("tier", ("what", "value"), counters),
        ),
    )


def _name(plan: Plan) -> str:
    return f"{'load' if plan.loads else 'store'} {plan.number}" + (" of before the reset" if plan.forgotten else "")
