"""Settling between the operations: asks the scheduler about itself and checks everything that holds then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_scheduler import goals
from kvlockstep.models.kv_scheduler.answers import queues_of
from kvlockstep.models.kv_scheduler.events import listen
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.models.requests.adapter import number
from kvlockstep.models.requests.doubt import with_blocks
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.kv_manager.listener import Room

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.one_table import OneTable


def settle(session: OneTable) -> None:
    """Checks the state between two operations. Raises Divergence."""
    check, occupancy, total = session.checks.check, session.occupancy, session.traits.total
    size, live = session.traits.block_size, session.live
    leaving = check_queues(session)
    tables = {name: session.tables.entries(name) for name in (*live, *leaving)}
    held_before = occupancy.held
    # Most operations change no table, and all of this looks at tables alone.
    if tables != session.settled_tables:
        occupancy.follow(tables)
        occupancy.check_lengths(tables)
        occupancy.check_conservation()
        # A scheduler may return the list that it works on.
        session.settled_tables = {name: table.copy() for name, table in tables.items()}
    same_blocks = occupancy.held is held_before
    occupancy.freed = set() if same_blocks else occupancy.given_back(held_before)
    if not session.goals_met["shared"]:
        goals.notice_sharing(session.goals_met, tables, size)
    avail, free = number(session.adapter.avail), session.tables.free()
    session.avail = avail
    held = occupancy.held_slots
    reserved = 0
    if session.transfers:
        session.holding = {name for name, job in live.items() if job.fresh and tables[name]}
        session.transfers.start(session.transfers.submitted(), live)
    limbo = session.limbo(occupancy.held)
    if session.transfers:
        idle = not live and not session.flights
        reserved = len(session.transfers.settle(free, occupancy.held, limbo, idle)) * size
    started = [name for name, job in live.items() if not job.fresh]
    if not same_blocks or free != session.settled_free:
        check(laws.no_double_free, free, size)
        occupancy.check_numbers(free)
        check(laws.eviction_safety, free, occupancy.held, size, tables, session.tables.entry_size)
    try:
        check(laws.leak_freedom, avail, held, total, started, limbo)
        check(laws.accounting, avail, held, total, limbo, reserved)
    except Divergence as wrong:
        before, now = (session.settled_free, free) if session.tables.shows_free else (None, None)
        raise with_blocks(wrong, occupancy, held_before, before, now, total - avail - held) from None
    session.settled_free = free
    for name in started:
        request = live[name].request
        if live[name].lost:
            continue  # what it has computed is not known before its next batch
        covered = min(len(tables[name]), request.computed), request.computed
        check(laws.coverage, *covered, ", which its next batch reads", "after this step", name=name)
        session.contents.read(request, tables, request.computed)
    # Behind the reads: where the content of a hit is wrong, that is the better finding.
    listen(session, *_rooms(session, free))
    session.poison(free)
    session.free_before = len(free) if session.tables.shows_free else None
    session.saw_evictable = session.saw_evictable or avail > len(free)


def _rooms(session: OneTable, free: Sequence[int]) -> list[Room]:
    """The blocks that are not free by the slots that the scheduler names, if it names any."""
    if session.listening is None or not session.tables.shows_free:
        return []
    return [Room(session.occupancy.blocks_for(session.traits.total - len(free)), "free_slots")]


def check_queues(session: SchedulerSession) -> set[str]:
    """Checks where the live requests stand. Returns those that have ended and whose last batch has not come back."""
    leaving = {name for flight in session.flights for name in flight.names if name not in session.live}
    queues = queues_of(session.adapter.queues)
    if leaving:
        queues = {queue: [name for name in names if name not in leaving] for queue, names in queues.items()}
    session.checks.check(laws.one_queue, queues, session.live)
    return leaving
