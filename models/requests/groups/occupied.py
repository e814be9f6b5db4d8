"""What requests hold in each pool, and what must hold of tables, windows and free blocks between two steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvlockstep.models.requests.groups.answers import Held, Table, Tables
from kvlockstep.models.requests.groups.session import GroupSession, named, of_pool
from kvlockstep.models.requests.groups.settled import Occupied
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.groups import one_group, window_freed
from kvlockstep.reference.kv_manager.groups.contract import needed


def occupied_in(
    session: GroupSession, requests: Mapping[str, Request], tables: Tables, held: Held
) -> dict[str, Occupied]:
    """Returns what requests hold in each pool; the objects of the last settling if nothing has changed since."""
    known = session.settled
    # If the target cannot tell what is held, the answer depends on the computed tokens as well.
    if known.occupied and not session.groups.untold and tables == known.tables and held == known.held:
        return known.occupied
    return {pool: occupancy(session, requests, pool, tables, held) for pool in session.groups.pools}


def occupancy(
    session: GroupSession, requests: Mapping[str, Request], pool: str, tables: Tables, held: Held
) -> Occupied:
    """Returns what requests hold in a pool, as the target says.

    If it does not, they hold what their next forward needs at least, and what their tables name at most.
    """
    surely: dict[int, set[int]] = {}
    possibly: set[int] = set()
    states = 0
    for g, group in enumerate(session.groups.groups):
        if group.pool != pool:
            continue
        known = [blocks for groups in held.values() if (blocks := groups[g]) is not None]
        surely[g] = set[int]().union(*known)
        for name, groups in held.items() if len(known) < len(held) else ():
            if groups[g] is not None:
                continue
            table = tables[name].get(g, [])
            if group.kind == "state":
                states += group.units
            # A request that has ended reads nothing any more, though its last batch may not be back.
            computed = requests[name].computed if name in requests else 0
            positions = needed(group, computed, computed)
            surely[g] |= _blocks((table[p] for p in positions if p < len(table)), group.block_size)
            possibly |= _blocks(table, group.block_size)
    blocks = set[int]().union(*surely.values())
    return Occupied(surely, blocks, len(possibly | blocks) + states)


def check_tables(session: GroupSession, tables: Tables, most: Mapping[int, int] | None) -> None:
    """Each table by itself: its slots, and its length, if there are `most` blocks of each group."""
    for name, groups in tables.items():
        session.checks.subject = name
        settled = session.settled.tables.get(name, {})
        for g, table in groups.items():
            if table == settled.get(g):
                continue
            size = session.groups.groups[g].block_size
            slots = [slot for slot in table if slot is not None]
            if len(set(slots)) < len(slots):
                twice = next(slot for slot in slots if slots.count(slot) > 1)
                positions = [p for p, slot in enumerate(table) if slot == twice]
                serves = [f"{name} position {p} in {named(session, g)}" for p in positions]
                session.checks.check(laws.no_aliasing, serves, twice, size)
            _check_numbers(session, min(slots, default=0) // size, f"{name} in {named(session, g)}:")
            if most is not None:
                observed = name, -(-len(table) // size), most[g], session.traits.max_length
                session.checks.check(laws.table_limit, *observed)
    session.checks.subject = None


def check_windows(
    session: GroupSession, name: str, tables: Mapping[int, Table], parts: Sequence[tuple[int, range]]
) -> None:
    """Checks, with `frees_window`, that a request has given back what no window reaches any more.

    `parts` are the positions that its next forward reads, each behind its group.
    """
    for g, positions in parts:
        if g not in session.groups.windows:
            continue
        size, first = session.groups.groups[g].block_size, positions.start
        left = tables[g][: first // size * size]
        if left.count(None) == len(left):
            session.checks.holds(window_freed)
            continue
        blocks = {p // size: slot // size for p, slot in enumerate(left) if slot is not None}
        where = f"{name} in {named(session, g)}"
        session.checks.check(window_freed, first, size, blocks, name=where)


def check_free(session: GroupSession, pool: str, occupied: Occupied, tables: Tables, free: list[int]) -> None:
    """Checks that no block of a pool serves two groups, and that none that is held is free."""
    known = session.settled
    if occupied is known.occupied.get(pool) and free == known.free.get(pool):
        return
    check, holds, of = session.checks.check, session.checks.holds, of_pool(session, pool)
    if sum(map(len, occupied.surely.values())) == len(occupied.blocks):
        holds(one_group)
    else:
        check(one_group, {named(session, g): blocks for g, blocks in occupied.surely.items()}, name=of)
    if not session.groups.shows_free:
        return
    if len(set(free)) == len(free):
        holds(laws.no_double_free)
        _check_numbers(session, min(free, default=0), of)
    else:
        size = next(group.block_size for group in session.groups.groups if group.pool == pool)
        check(laws.no_double_free, [block * size for block in free], size, name=of)
    if occupied.blocks.isdisjoint(free):
        holds(laws.eviction_safety, len(occupied.surely))
    else:
        for g, blocks in occupied.surely.items():
            both, size = blocks.intersection(free), session.groups.groups[g].block_size
            serving = {f"{name} in group {g},": table.get(g, []) for name, table in tables.items()} if both else {}
            check(laws.eviction_safety, [block * size for block in both], blocks, size, serving, 1, name=of)


def check_sum(
    session: GroupSession, pool: str, occupied: Occupied, avail: int, live: list[str], limbo: int, reserved: int = 0
) -> None:
    """Checks that what is available in a pool and what is held add up to it, but for blocks in `limbo`.

    Of these the `reserved` ones are not available.
    """
    check, of = session.checks.check, of_pool(session, pool)
    total, held = session.groups.pools[pool], len(occupied.blocks)
    limbo += occupied.unsure
    lowest = min(occupied.blocks - session.seen[pool], default=0)
    session.seen[pool] |= occupied.blocks
    check(laws.conservation, session.seen[pool], total, 1, lowest, name=of)
    check(laws.leak_freedom, avail, held, total, live, limbo, "block", name=of)
    check(laws.accounting, avail, held, total, limbo, reserved, "block", name=of)


def _blocks(slots: Iterable[int | None], size: int) -> set[int]:
    return {slot // size for slot in slots if slot is not None}


def _check_numbers(session: GroupSession, lowest: int, name: str | None) -> None:
    """Raises Divergence if the lowest block of a table or of a free list is below 0."""
    if lowest < 0:
        session.checks.check(laws.conservation, (), 0, 1, lowest, name=name)
