"""Items of a batch: each continues where its request stopped, and together they stay within the limits."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.one_table import OneTable
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.transfers import Transfer


def check_items(session: OneTable, items: Sequence[Item], submitted: Sequence[Transfer] = ()) -> None:
    """Checks a batch before it runs, which came with these transfers. Raises Divergence."""
    check, live = session.checks.check, session.live
    seen: set[str] = set()
    for item in items:
        check(laws.live_items, item.rid, live, seen)
        seen.add(item.rid)
        _check_item(session, item, live[item.rid])
    check(laws.batch_limits, sum(item.n for item in items), len(items), *session.limits)
    if session.traits.policy is not None:
        waiting = [(job.rank, name) for name, job in live.items() if job.fresh and not job.undelivered]
        # Who is loaded for is overtaken meanwhile, then goes first, for it keeps others from its room, and may be
        # preempted behind those whom it has overtaken. Among the others the order is as ever.
        loaded = {rid for transfer in submitted for rid in transfer.rids}
        if session.transfers:
            loaded |= session.transfers.ever_loaded
            waiting = [(rank, name) for rank, name in waiting if name not in loaded]
        # Not in the order of `seen`: that of a set differs from process to process, and so would the message.
        for item in items:
            job = live[item.rid]
            late = job.fresh and item.rid not in loaded
            before = [n for rank, n in waiting if rank < job.rank and n not in seen] if late else []
            check(laws.admission_order, item.rid, before, session.traits.policy)
    sampling = {item.samples for item in items if item.n == 1 or not item.samples}
    session.goals_met["chunk"] += False in sampling
    session.goals_met["mixed"] += any(item.n > 1 for item in items) and any(
        item.n == 1 and not live[item.rid].fresh for item in items
    )


def _check_item(session: OneTable, item: Item, job: Job) -> None:
    check = session.checks.check
    stop, known = item.start + item.n, len(job.request.tokens)
    known_and_drafts = known + item.drafts
    computed = job.request.computed if job.restart is None else min(item.start, job.restart)
    check(laws.continuity, item.start, stop, computed, known_and_drafts, job.fresh, name=item.rid)
    tokens = job.request.tokens + job.guesses(item)
    check(laws.input_tokens, item.tokens, tokens, item.start, name=item.rid)
    check(laws.sampling, item.samples, stop - item.drafts, known, item.drafts, name=item.rid)
    session.check_tables(item)
