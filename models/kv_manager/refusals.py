"""Refusals of a kv_manager: each must be necessary (rule 5) and must change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.kv_manager.session import Session
from kvlockstep.models.requests.adapter import number
from kvlockstep.models.requests.request import Request
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import counted


def check_admission(session: Session, request: Request, before: int | None) -> None:
    """Raises Divergence if the request would fit, or if its refusal changed something; avail was `before`."""
    admitted = sum(session.live[name].admitted for name in session.scheduled)
    reserve = session.traits.output_reserve * (1 + admitted)
    needed = session.occupancy.blocks_for(len(request.tokens) + reserve) + _copy_sources(session)
    what = f"admission of {counted(len(request.tokens), 'token')}"
    session.checks.check(laws.admission_honesty, needed, _room(session), what)
    check_unchanged(session, before, "an admission")


def check_reservation(session: Session, request: Request, n: int, before: int | None, appended: bool) -> None:
    """Raises Divergence if a reservation of `n` tokens would fit, or if its refusal changed something.

    `appended`: a token was appended to the request just before.
    """
    table = session.tables.entries(request.name)
    others = {block for name in session.holding() if name != request.name for block in _blocks_of(session, name)}
    written = _written_by(session, request, n, table)
    # With late release a block that is being copied is shared as well, with nobody that the judge knows of.
    shared = len(written if session.traits.late_release or session.transfers else written & others)
    more = session.occupancy.blocks_for(request.computed + n) - len(_blocks_of(session, request.name))
    needed = max(0, more) + shared + _copy_sources(session)
    session.checks.check(laws.admission_honesty, needed, _room(session), f"a reservation of {counted(n, 'token')}")
    check_unchanged(session, before, "a reservation", request if appended else None)


def check_unchanged(session: Session, before: int | None, what: str, appended: Request | None = None) -> None:
    """Raises Divergence if a refusal changed avail, or a table since the beginning of the step.

    If those tables are not known any more, a request with nothing scheduled still has a slot for each token that it has
    computed. The request that a token was `appended` to may have taken a slot for it.
    """
    check = session.checks.check
    if before is not None:
        check(laws.atomicity, before, number(session.adapter.avail), what, "avail")
    for name, table in session.unchanged.items():
        after = session.tables.entries(name)
        if appended is not None and name == appended.name:
            after = after[: len(table)]
        check(laws.atomicity, table, after, what, f"the slots of {name}")
    if not session.unchanged:
        for request in session.live.values():
            needed = 0 if request.pending else request.computed
            left = min(needed, len(session.tables.entries(request.name)) * session.tables.entry_size)
            check(laws.atomicity, needed, left, what, f"the slots of computed tokens of {request.name}")


def _room(session: Session) -> int:
    """Counts the blocks that a refused request could have had, less those that this step's requests still need."""
    traits = session.traits
    held: set[int] = set()
    owed = 0
    for request in session.live.values():
        blocks = _blocks_of(session, request.name)
        held |= blocks
        end = len(request.tokens) if traits.whole_prompt else request.computed + request.pending
        owed += max(0, session.occupancy.blocks_for(end) - len(blocks)) if request.pending else 0
    held = held.union(*(_blocks_of(session, name) for name in session.loading))
    # What waits to be released was rightly refused.
    owed += session.occupancy.blocks_for(session.limbo(held))
    return traits.total // traits.block_size - len(held) - owed


def _copy_sources(session: Session) -> int:
    """Counts blocks that may be kept until the due copies of this step have run: all blocks of each hit."""
    if not session.traits.copies_at_admit:
        return len(session.scheduled) if session.traits.copies_at_reserve else 0
    requests = [session.live[name] for name in session.scheduled]
    return sum(max(1, session.occupancy.blocks_for(request.hit if request.admitted else 0)) for request in requests)


def _written_by(session: Session, request: Request, n: int, table: Sequence[int]) -> set[int]:
    """Returns the blocks that `n` more tokens go to, as far as the table has them; it may end within a block."""
    size = session.tables.entry_size
    # From the last computed token on: the new ones go on in its block, even if they have no slot there yet.
    start = request.computed - (request.computed % session.traits.block_size > 0)
    return session.occupancy.blocks_of(table[start // size : -(-(request.computed + n) // size)])


def _blocks_of(session: Session, name: str) -> set[int]:
    return session.occupancy.blocks_of(session.tables.entries(name))
