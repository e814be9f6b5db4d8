"""Block events of a kv_scheduler, compared with its loads and with the hits that its batches begin with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.properties.kv_manager.listener import Hit, Room
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Item


def compare_starts(session: SchedulerSession, items: Sequence[Item], submitted: Sequence[Transfer]) -> None:
    """Compares the hits of the requests that begin in a batch with the events; `submitted` came with the batch.

    A request that holds what was loaded for it was admitted when its load was submitted: more may be stored by now.
    """
    if session.listening is None:
        return
    own = [(rid, transfer.tier) for transfer in submitted if transfer.before for rid in transfer.rids]
    starts = [(item, session.live[item.rid]) for item in items if session.live[item.rid].fresh]
    hits = []
    for item, job in starts:
        if job.undelivered:
            continue
        hit = Hit(job.request.tokens, job.request.extra_key, item.start, waited=item.rid in session.holding)
        tiers = [tier for rid, tier in own if rid == item.rid]
        hits.append(session.listening.loaded(hit, tiers) if tiers else hit)
    session.listening.moments(hits)


def note_computed(session: SchedulerSession, names: Collection[str]) -> None:
    """A batch with these requests is back: what they have computed may be announced."""
    if session.listening is None:
        return
    for request in (session.live[name].request for name in names if name in session.live):
        session.listening.computed(request, request.hit)


def listen(session: SchedulerSession, *rooms: Room) -> None:
    """Takes in what was announced since the last time; `rooms` are what the scheduler says is not free."""
    if session.listening is None:
        return
    session.listening.between(*rooms)
    session.listening.raise_unannounced()
