"""Forward of a step: the copies that are due, all writes, then all reads."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.kv_manager.session import Session
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager import laws


def copy(session: Session, due: Sequence[tuple[int, int]], when: str = "") -> None:
    """Copies (source, target) pairs of slots; `when` names the fork that makes them, "" is the forward."""
    sources: dict[int, int] = {}
    for source, target in due:
        if sources.setdefault(target, source) != source:
            two = [f"a copy from slot {s}" for s in (sources[target], source)]
            session.checks.check(laws.no_aliasing, two, target, session.traits.block_size)
    session.memory.copy(due, when)
    session.goals_met["copies"] += bool(due)
    # A block that was copied into may have been free when free_now was asked for.
    session.first_hit = None if due else session.first_hit


def write_and_read(session: Session) -> None:
    """Writes what is scheduled, then reads every live request as far as it is computed then."""
    session.memory.begin_forward()
    # Asked for once, after the launch, which may have allocated; writes and reads have to see the same tables.
    names = session.scheduled if session.stale else list(session.live)
    tables = {name: session.tables.entries(name) for name in names}
    session.occupancy.check_lengths(tables)
    for name in session.scheduled:
        _write(session, session.live[name], tables)
    # All writes first: a request also depends on what others write in this forward, whatever their order is.
    for name in names:
        request = session.live[name]
        session.evaluated[laws.write_isolation.id] += any(writer != name for writer in session.scheduled)
        read(session, request, tables, request.computed + request.pending)
    _check_hit_was_not_free(session, tables)


def read(session: Session, request: Request, tables: dict[str, list[int]], stop: int, *, settled: bool = False) -> None:
    """Reads positions [0, stop) of a request. Raises Divergence if it lacks a slot, or if one holds the wrong KV.

    `settled`: it is looked at between steps, and the next forward will read it.
    """
    session.checks.subject = request.name
    # Otherwise the memory would be read beyond the end of the table.
    _check_coverage(session, request, tables, stop, settled)
    session.contents.read(request, tables, stop)


def _check_coverage(
    session: Session, request: Request, tables: dict[str, list[int]], stop: int, settled: bool = False
) -> None:
    slots = len(tables[request.name]) * session.tables.entry_size
    if settled:
        where, when = f" of {request.name}, which its next forward reads", "after this step"
    else:
        where, when = f" of {request.name}", "at launch"
    session.checks.check(laws.coverage, slots, stop, where, when)


def _write(session: Session, request: Request, tables: dict[str, list[int]]) -> None:
    table, size = tables[request.name], session.tables.entry_size
    stop = request.computed + request.pending
    session.checks.subject = request.name
    _check_coverage(session, request, tables, stop)
    session.contents.write(request, tables, request.computed, stop)
    block_size, written = session.traits.block_size, table[request.computed // size : -(-stop // size)]
    session.occupancy.written.update(slot // block_size for slot in written)


def _check_hit_was_not_free(session: Session, tables: dict[str, list[int]]) -> None:
    """Checks free_now, as it was asked for last, against the blocks of the hit that came next.

    Only of a request that was admitted with nothing done since, and nothing copied. Its content was read before: a hit
    that is wrong says nothing about free_now.
    """
    request, session.first_hit = session.first_hit, None
    if request is None or request.name not in tables or session.settled_free_now is None:
        return
    size, occupancy = session.traits.block_size, session.occupancy
    entries = tables[request.name][: request.hit // size * size // session.tables.entry_size]
    hit = occupancy.blocks_of(entries) - occupancy.held
    avail = session.traits.total - occupancy.held_slots
    session.checks.check(laws.free_count, session.settled_free_now, avail, request.name, hit, size)
