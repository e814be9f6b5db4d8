"""Block events of a kv_scheduler: what it announces, beside the hits that its batches begin with and its loads."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.properties.kv_manager.listener import Hit, Room
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Item


def compare_starts(session: SchedulerSession, items: Sequence[Item], submitted: Sequence[Transfer]) -> None:
    """Compares the hits of the requests that begin in a batch with the events; `submitted` came with the batch."""
    if session.listening is None:
        return
    own = {rid for transfer in submitted if transfer.before for rid in transfer.rids}
    starts = [(item, session.live[item.rid]) for item in items if session.live[item.rid].fresh]
    hits = [
        Hit(job.request.tokens, job.request.extra_key, item.start, item.rid in own)
        for item, job in starts
        if not job.undelivered
    ]
    session.listening.moments(hits)


def note_computed(session: SchedulerSession, names: Collection[str]) -> None:
    """A batch with these requests is back: what they have computed may be announced."""
    if session.listening is None:
        return
    for request in (session.live[name].request for name in names if name in session.live):
        session.listening.computed(session.transfers, request, request.hit)


def listen(session: SchedulerSession, free: Sequence[int]) -> None:
    """Takes in what was announced since the last time; `free` are the slots that the scheduler says are free."""
    if session.listening is None:
        return
    rooms = []
    if session.tables.shows_free:
        rooms.append(Room(session.occupancy.blocks_for(session.traits.total - len(free)), "free_slots"))
    session.listening.between(session.transfers, *rooms)
    session.listening.raise_unannounced()
