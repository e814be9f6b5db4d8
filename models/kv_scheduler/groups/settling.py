"""Settling between the operations of a kv_scheduler with groups: what must hold in each group and in each pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kvlockstep.models.kv_scheduler.events import listen
from kvlockstep.models.kv_scheduler.goals import notice_sharing
from kvlockstep.models.kv_scheduler.settling import check_queues
from kvlockstep.models.requests.groups import in_flight
from kvlockstep.models.requests.groups.occupied import (
    check_free,
    check_sum,
    check_tables,
    check_windows,
    occupied_in,
)
from kvlockstep.models.requests.groups.reading import Access, cover, parts_read, read_parts
from kvlockstep.models.requests.groups.session import rooms
from kvlockstep.models.requests.groups.settled import Occupied, Settled

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge
    from kvlockstep.models.requests.transfers.places import Block

READ_NEXT = Access("after this step", "which its next batch reads")


def settle(judge: GroupedSchedulerJudge) -> None:
    """Checks the state between two operations. Raises Divergence."""
    questions, live = judge.groups, judge.live
    judge.checks.subject = None
    leaving = check_queues(judge)
    names = [*live, *leaving]
    tables = questions.tables(names)
    # A waiting request holds nothing. If it does hold blocks that its tables do not name, accounting misses them.
    held = questions.held([n for n in names if n in leaving or not live[n].fresh or any(tables[n].values())])
    avail, free = questions.avail(), questions.free()
    judge.avail = sum(avail.values())
    check_tables(judge, tables, judge.most_blocks)
    started = {name: job.request for name, job in live.items() if not job.fresh}
    # What a request of a void batch has computed is not known before its next batch. Void batches take transfers.
    known = {name: r for name, r in started.items() if not live[name].lost} if judge.transfers else started
    parts = {name: parts_read(judge, request, request.computed) for name, request in known.items()}
    flying = {name for flight in judge.flights for name in flight.names}
    for name in known if judge.traits.frees_window else ():
        if name not in flying:
            check_windows(judge, name, tables[name], parts[name])
    occupied = occupied_in(judge, started, tables, held)
    blocks = {pool: found.blocks for pool, found in occupied.items()}
    if len(blocks) == 1:
        # With several pools a block number does not say which pool it is of.
        (judge.occupancy.held,), held_before = blocks.values(), judge.occupancy.held
        judge.occupancy.freed = held_before - judge.occupancy.held
    if judge.transfers:
        judge.holding = {name for name, job in live.items() if job.fresh and any(map(any, tables[name].values()))}
        judge.transfers.start(judge.transfers.submitted(), live)
    limbo = in_flight.limbo_of(judge, occupied)
    reserved = in_flight.count(judge, _settle_transfers(judge, free, occupied, sum(limbo.values())))
    for pool, found in occupied.items():
        check_free(judge, pool, found, tables, free.get(pool, []))
        check_sum(judge, pool, found, avail[pool], list(started), limbo[pool], reserved[pool])
    for name, request in known.items():
        for g, positions in parts[name]:
            cover(judge, name, tables[name], g, positions, READ_NEXT, prefix=name)
        read_parts(judge, request, tables, parts[name], covered=True)
    judge.checks.subject = None
    counts = {pool: len(blocks) for pool, blocks in free.items()} if questions.shows_free else avail
    # Behind the reads, as for one table.
    listen(judge, *rooms(judge, counts, "free_slots") if questions.shows_free else ())
    in_flight.poison(judge, free)
    sliding = judge.progress.note(tables, blocks, counts, free)
    # Tables that are the same share no more than they did.
    for g in questions.attention if not judge.goals_met["shared"] and tables != judge.settled.tables else ():
        held_slots = {name: [slot for slot in groups[g] if slot is not None] for name, groups in tables.items()}
        notice_sharing(judge.goals_met, held_slots, questions.groups[g].block_size)
    judge.settled = Settled(tables, held, occupied, free)
    judge.goals_met["window_slides_in_flight"] += not flying.isdisjoint(sliding)
    in_flight.note_slid(judge, sliding)
    judge.saw_evictable = judge.saw_evictable or avail != counts


def _settle_transfers(
    judge: GroupedSchedulerJudge, free: Mapping[str, list[int]], occupied: Mapping[str, Occupied], limbo: int
) -> Collection[Block]:
    """Checks the transfers between two operations. Returns the blocks that they still write and nobody holds."""
    if judge.transfers is None:
        return ()
    held, idle = in_flight.held_of(judge, occupied), not judge.live and not judge.flights
    return judge.transfers.settle(in_flight.blocks_of(judge, free), held, limbo, idle)
