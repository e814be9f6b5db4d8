"""Batches that are void: a load that a batch waited for has failed, and the scheduler does not know it yet.

Whoever reads what that load should have written computes garbage, and no law is held against it. The scheduler hears of
it when the batch is back. From then on nothing of it may be read, and those requests go on from before that batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.kv_scheduler.one_table import OneTable
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.reference.kv_scheduler.contract import Item


def void_items(session: OneTable, items: Sequence[Item]) -> set[str]:
    """Returns the requests of a batch that read what is void, be it only since another one of this batch writes it."""
    void: set[str] = set()
    if session.transfers is None or not session.transfers.failed_unheard:
        return void
    cells = session.transfers.void_cells
    left = list(items)
    while found := [item for item in left if not cells.isdisjoint(session.read_cells(item))]:
        for item in found:
            left.remove(item)
            void.add(item.rid)
            cells.update(session.written_cells(item))
            job = session.live[item.rid]
            if job.known is None:
                job.known, job.first_lost = len(job.request.tokens), item.start
    return void


def take_back(session: SchedulerSession) -> set[str]:
    """The scheduler has heard of the failure. Returns the requests that were void; what they gained does not count."""
    assert session.transfers is not None
    session.transfers.places.give_up(session.transfers.void_cells)
    session.transfers.void_cells.clear()
    void = set()
    for name, job in session.live.items():
        if job.known is not None:
            del job.request.tokens[job.known :]
            job.request.computed = job.first_lost
            job.known, job.restart = None, None if job.fresh else job.first_lost
            void.add(name)
    return void
