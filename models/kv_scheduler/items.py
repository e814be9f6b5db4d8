"""Items of a batch: each continues where its request stopped, and together they stay within the limits."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.taking import taken
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.kv_scheduler.one_table import OneTable
from kvlockstep.models.kv_scheduler.session import SchedulerSession
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.request import Request
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_scheduler.contract import Item


def check_items(session: OneTable, items: Sequence[Item], submitted: Sequence[Transfer] = ()) -> None:
    """Checks a batch before it runs; `submitted` are the transfers that came with it. Raises Divergence."""
    check, live = session.checks.check, session.live
    seen: set[str] = set()
    for item in items:
        check(laws.live_items, item.rid, live, seen)
        seen.add(item.rid)
        _check_item(session, item, live[item.rid])
    check(laws.batch_limits, sum(item.n for item in items), len(items), *session.limits)
    if session.traits.policy is not None:
        _check_order(session, items, submitted)
    sampling = {item.samples for item in items if item.n == 1 or not item.samples}
    session.goals_met["chunk"] += False in sampling
    session.goals_met["mixed"] += any(item.n > 1 for item in items) and any(
        item.n == 1 and not live[item.rid].fresh for item in items
    )


def _check_order(session: OneTable, items: Sequence[Item], submitted: Sequence[Transfer]) -> None:
    """Checks that nobody starts while somebody with a smaller place waits who could have started.

    Requests that it has rightly overtaken before do not count. `submitted` are the transfers that came with the batch.
    """
    live = session.live
    loading = {rid for transfer in submitted for rid in transfer.rids}
    if session.transfers:
        loading |= session.transfers.loading() | needing_moves(session, submitted)
    loading |= looked_up(session)
    seen = {item.rid for item in items}
    waiting = [n for n, job in live.items() if job.fresh and not job.undelivered and n not in seen]
    holding = session.holding if session.traits.loaded_first else set()
    # This batch may have taken from a waiting request what it held.
    holding = {name for name in holding if name in seen or session.held_by(name)}
    starting = [item.rid for item in items if live[item.rid].fresh]
    place = {name: (name not in holding, live[name].rank) for name in waiting + starting}
    # Not in the order of `seen`: that of a set differs from process to process, and so would the message.
    for number, rid in enumerate(starting):
        before = [name for name in waiting if name not in loading and place[name] < place[rid]]
        # A request that comes back after a preemption is still ahead of those that it had overtaken.
        before = [name for name in before if (rid, name) not in session.overtaken]
        # Who starts in the same batch but later is behind, too: when his load has failed, nobody says whether he still
        # holds something.
        behind = waiting + [name for later, name in enumerate(starting) if later > number or place[name] > place[rid]]
        session.overtaken |= {(rid, name) for name in behind if live[name].rank < live[rid].rank}
        session.checks.check(laws.admission_order, rid, before, session.traits.policy)


def needing_moves(session: SchedulerSession, submitted: Sequence[Transfer]) -> set[str]:
    """The requests that begin with a block which a move brings to somebody; `submitted` have not started yet."""
    prefixes = session.transfers.on_their_way(submitted) if session.transfers else []
    fresh = {name: job.request for name, job in session.live.items() if prefixes and job.fresh}
    return {name for name, request in fresh.items() if _begins_with_one(request, prefixes)}


def looked_up(session: SchedulerSession) -> set[str]:
    """The requests for which the target is asking a tier what it has."""
    if not session.traits.looks_up:
        return set()
    asked = answered(session.adapter.looking_up)
    found: set[str] = taken(lambda: set(bounded(asked)), asked, session.adapter.looking_up, "ids")
    return found


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


def _begins_with_one(request: Request, prefixes: Sequence[tuple[int | None, Sequence[int]]]) -> bool:
    """Returns whether one of these, an extra key and tokens, is a prefix of the request."""
    # Engines also fetch, and wait for, the block that ends with the prompt, though its last token is computed again.
    own = request.tokens
    return any(key == request.extra_key and own[: len(tokens)] == list(tokens) for key, tokens in prefixes)
