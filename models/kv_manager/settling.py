"""Settling between steps: asks the manager about itself and checks everything that holds then.

Several laws see the same fault, and the first one here is blamed: laws that name a cause come before those that only
see a sum.
"""

from __future__ import annotations

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.kv_manager.forward import read
from kvlockstep.models.kv_manager.questions import Answers
from kvlockstep.models.kv_manager.session import Session
from kvlockstep.models.requests.doubt import with_blocks
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.listener import Room


def settle(session: Session) -> None:
    """Checks the state between two steps, if the session does not pass it over. Raises Divergence."""
    session.checks.subject = None
    if session.listening is not None:
        # Here and not at the admission: the forward has read the hit by now, and found its content right.
        session.listening.raise_unannounced()
    if not session.passes():
        look(session)


def catch_up(session: Session) -> None:
    """Looks at everything, if the last settling was passed over and no step has begun since. Raises Divergence."""
    if session.stale and not session.scheduled:
        session.stale = False
        look(session)


def look(session: Session) -> None:
    """Asks the manager about everything, and checks all that holds between two steps. Raises Divergence."""
    checks, occupancy, traits = session.checks, session.occupancy, session.traits
    session.follow_transfers()
    answers = session.questions.between_steps(session.holding())
    tables, free, avail, free_now = answers
    session.avail = avail
    held_before = occupancy.held
    _notice_growth(session, tables)
    # Every law below compares with what these tables hold; with the blocks held before, right managers are blamed.
    _follow(session, answers)
    held, size = occupancy.held_slots, traits.block_size
    # A free list and a set of held blocks that are still the same objects were checked together the last time.
    if free is not None and (free is not session.settled_free or occupancy.held is not held_before):
        # A block that is in the free list twice is often handed out next, and held and free as well then.
        checks.check(laws.no_double_free, free, size)
        occupancy.check_numbers(free)
        checks.check(laws.eviction_safety, free, occupancy.held, size, tables, session.tables.entry_size)
    # The special case first: whatever breaks it breaks accounting, too.
    limbo, reserved = _look_at_transfers(session, free)
    try:
        checks.check(laws.leak_freedom, avail, held, traits.total, session.holding(), limbo)
        checks.check(laws.accounting, avail, held, traits.total, limbo, reserved)
    except Divergence as wrong:
        before, now = (session.settled_free, free) if session.tables.shows_free else (None, None)
        raise with_blocks(wrong, occupancy, held_before, before, now, traits.total - avail - held) from None
    # Behind accounting, which says whether it is avail that is wrong.
    checks.check(laws.free_count, free_now, avail, "", (), size)
    for request in session.live.values():
        read(session, request, tables, request.computed, settled=True)
    if session.listening is not None and session.ask != "late":
        session.listening.between(Room(occupancy.blocks_for(traits.total - free_now)))
    # Behind eviction_safety: of a held block that is free the poison would be blamed, as wrong content.
    if free is not None:
        session.poison(free)
    session.settled_free = free
    session.settled_free_now = free_now
    # A manager may return the list that it works on.
    session.unchanged = tables if session.tables.per_block else {name: table.copy() for name, table in tables.items()}
    session.saw_evictable = session.saw_evictable or avail > free_now
    checks.subject = None


def _look_at_transfers(session: Session, free: list[int] | None) -> tuple[int, int]:
    """Returns the most slots that may be lost to everybody, and the least; checks the transfers, if there are any."""
    if session.transfers is None:
        return session.limbo(), 0
    limbo, held = session.limbo(), session.occupancy.held
    reserved = session.transfers.settle(free or [], held, limbo, idle=not session.holding())
    return limbo, len(reserved) * session.traits.block_size


def _follow(session: Session, answers: Answers) -> None:
    """Updates the occupancy from the tables, and counts the blocks freed and evicted since the last settling."""
    occupancy, tables = session.occupancy, answers.tables
    held_before = occupancy.held
    if not session.tables.per_block or tables != session.settled_tables:
        occupancy.follow(tables)
        occupancy.check_conservation()
        occupancy.check_lengths(tables)
        session.settled_tables = tables
        session.tables.forget_but(tables)
    occupancy.freed = set() if occupancy.held is held_before else occupancy.given_back(held_before)
    free_before = session.settled_free_now
    if free_before is not None:
        fresh = len(occupancy.written - held_before) * session.traits.block_size
        session.goals_met["eviction"] += fresh > free_before
        occupancy.evicted += occupancy.evictions(held_before, free_before, answers.free_now)
    occupancy.written.clear()


def _notice_growth(session: Session, tables: dict[str, list[int]]) -> None:
    """Records that a table has grown: where none ever does, every request has its row from the start."""
    if not session.saw_growth:
        lengths = session.lengths
        session.saw_growth = any(len(table) > lengths.get(name, len(table)) for name, table in tables.items())
        session.lengths = {name: len(table) for name, table in tables.items()}
