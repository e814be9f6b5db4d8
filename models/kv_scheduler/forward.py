"""Forward of a batch: its copies, all writes, then all reads; behind it tokens are sampled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from kvlockstep.models.kv_scheduler import goals
from kvlockstep.models.kv_scheduler.job import Flight, Job
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv.memory import VOID
from kvlockstep.reference.kv_scheduler.contract import PAD_DRAFT, Item


def forward(
    session: SchedulerSession, items: Sequence[Item], copies: Sequence[tuple[int, int]], void: Collection[str] = ()
) -> None:
    """Runs a batch whose items were checked. Raises Divergence.

    Requests that are `void` read what a load of this batch has not written: what they write is as worthless.
    """
    session.memory.copy(copies)
    session.poison(session.tables.free())
    session.memory.begin_forward()
    written: set[int] = set()
    # The worker's tables: that the scheduler holds the same slots was checked with the items.
    tables = {item.rid: item.slots for item in items}
    for item in items:
        job, stop = session.live[item.rid], item.start + item.n
        start_item(session, job, item)
        if item.rid in void:
            session.memory.put(item.slots[item.start : stop], [VOID] * item.n)
        else:
            session.contents.write(job.request, tables, item.start, stop)
        written.update(slot // session.traits.block_size for slot in item.slots[item.start :])
    session.evaluated[laws.write_isolation.id] += len(items) > 1
    # All writes first: an item also depends on what others write in this batch, whatever their order is.
    for item in items:
        if item.rid not in void:
            session.contents.read(session.live[item.rid].request, tables, item.start + item.n)
    for item in items:
        request = session.live[item.rid].request
        request.computed = item.start + item.n - item.drafts
        if session.listening is not None:
            session.listening.computed(request, item.start)
    session.memory.end_forward()
    if session.free_before is not None:
        fresh = len(written - session.occupancy.held) * session.traits.block_size
        session.goals_met["eviction"] += fresh > session.free_before


def start_item(session: SchedulerSession, job: Job, item: Item) -> None:
    """A request starts, or continues behind what is in flight, with the drafts of its item."""
    job.restart = None
    job.decodes = item.samples
    if job.fresh:
        goals.notice_start(session.goals_met, job, item)
        job.request.hit = item.start
        job.fresh = job.preempted = False
    else:
        session.goals_met["behind_accepted"] += any(flight.accepted.get(item.rid) for flight in session.flights)
        session.goals_met["behind_rejected"] += any(flight.rejected.get(item.rid) for flight in session.flights)
    job.request.computed = item.start
    job.request.drafts = job.guesses(item)
    job.offered = []


def sample(
    session: SchedulerSession, items: Sequence[Item], tokens: Sequence[int], accept: int, void: Collection[str] = ()
) -> Flight:
    """Samples for a batch that has run, as `schedule` of the judge says. Returns the batch in flight.

    What a `void` request samples does not count, but nobody knows that before the batch is back.
    """
    flight = Flight({item.rid for item in items}, {}, {}, {}, {})
    for item in items:
        job = session.live[item.rid]
        drafts, job.request.drafts = job.request.drafts, []
        if not item.samples:
            continue
        token = flight.sampled[item.rid] = tokens[len(flight.sampled) % len(tokens)]
        right = list(takewhile(lambda draft: draft != PAD_DRAFT, drafts))[:accept]
        if item.drafts:
            flight.accepted[item.rid] = len(right)
            flight.rejected[item.rid] = item.drafts - len(right)
            session.goals_met["drafts"] += 1
            session.goals_met["accepted_drafts"] += len(right) > 0
            session.goals_met["rejected_drafts"] += len(right) < item.drafts
        flight.gained[item.rid] = [] if item.rid in void else job.cut([*right, token])
        job.request.tokens += [*right, token]
        job.request.computed += len(right)
    return flight
