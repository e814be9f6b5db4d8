"""Settling between steps of a kv_manager with groups: what must hold in each group and in each pool.

Laws that name a cause come before those that only see a sum, as for one table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kvlockstep.models.requests.groups import in_flight
from kvlockstep.models.requests.groups.occupied import (
    check_free,
    check_sum,
    check_tables,
    check_windows,
    occupied_in,
)
from kvlockstep.models.requests.groups.reading import READ_NEXT, parts_read, read_parts
from kvlockstep.models.requests.groups.session import of_pool, rooms
from kvlockstep.models.requests.groups.settled import Occupied, Settled
from kvlockstep.properties.kv_manager import laws

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge
    from kvlockstep.models.requests.transfers.places import Block


def settle(judge: GroupedJudge) -> None:
    """Checks the state between two steps. Raises Divergence."""
    checks, questions, live = judge.checks, judge.groups, judge.live
    checks.subject = None
    if judge.listening is not None:
        # Here and not at the admission: the forward has read the hit by now, and found its content right.
        judge.listening.raise_unannounced()
    judge.follow_transfers()
    holding = judge.holding()
    answers = questions.between_steps(holding)
    judge.avail = sum(answers.avail.values())
    check_tables(judge, answers.tables, _most_blocks(judge))
    parts = {name: parts_read(judge, request, request.computed) for name, request in live.items()}
    for name in live if judge.traits.frees_window else ():
        checks.subject = name
        check_windows(judge, name, answers.tables[name], parts[name])
    checks.subject = None
    occupied = occupied_in(judge, live, answers.tables, answers.held)
    limbo = in_flight.limbo_of(judge, occupied)
    reserved = in_flight.count(judge, _settle_transfers(judge, answers.free, occupied, sum(limbo.values())))
    for pool, found in occupied.items():
        check_free(judge, pool, found, answers.tables, answers.free.get(pool, []))
        check_sum(judge, pool, found, answers.avail[pool], holding, limbo[pool], reserved[pool])
        free_now, avail = answers.free_now[pool], answers.avail[pool]
        checks.check(laws.free_count, free_now, avail, "", (), 1, name=of_pool(judge, pool))
    for name, request in live.items():
        read_parts(judge, request, answers.tables, parts[name], READ_NEXT)
    if judge.listening is not None and judge.ask != "late":
        judge.listening.between(*rooms(judge, answers.free_now, "free_now"))
    in_flight.poison(judge, answers.free)
    blocks = {pool: found.blocks for pool, found in occupied.items()}
    in_flight.note_slid(judge, judge.progress.note(answers.tables, blocks, answers.free_now, answers.free))
    judge.unchanged = answers.tables
    judge.settled = Settled(answers.tables, answers.held, occupied, answers.free)
    judge.saw_evictable = judge.saw_evictable or answers.avail != answers.free_now
    judge.saw_growth = True
    checks.subject = None


def _settle_transfers(
    judge: GroupedJudge, free: Mapping[str, list[int]], occupied: Mapping[str, Occupied], limbo: int
) -> Collection[Block]:
    """Checks the transfers between two steps. Returns the blocks that they still write and nobody holds."""
    if judge.transfers is None:
        return ()
    held = in_flight.held_of(judge, occupied)
    return judge.transfers.settle(in_flight.blocks_of(judge, free), held, limbo, idle=not judge.holding())


def _most_blocks(judge: GroupedJudge) -> dict[int, int] | None:
    """The blocks of the longest table in each attention group, None without a limit."""
    longest, groups = judge.traits.max_length, judge.groups.groups
    if longest is None:
        return None
    return {g: -(-longest // groups[g].block_size) + judge.traits.lookahead_blocks for g in judge.groups.attention}
