"""Settling between steps of a kv_manager with groups: what must hold in each group and in each pool.

Laws that name a cause come before those that only see a sum, as for one table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kvlockstep.models.kv_manager.groups.answers import GroupAnswers, Held, Tables
from kvlockstep.models.kv_manager.groups.reading import read
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.groups import one_group, window_freed
from kvlockstep.reference.kv_manager.groups.contract import needed

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge


class Occupied(NamedTuple):
    """Blocks of a pool that requests surely hold, by group, and how many they may hold at most."""

    surely: dict[int, set[int]]
    most: int

    @property
    def blocks(self) -> set[int]:
        return set().union(*self.surely.values())

    @property
    def unsure(self) -> int:
        return self.most - len(self.blocks)


def settle(judge: GroupedJudge) -> None:
    """Checks the state between two steps. Raises Divergence."""
    checks, questions = judge.checks, judge.groups
    checks.subject = None
    answers = questions.between_steps(judge.live)
    judge.avail = sum(answers.avail.values())
    _check_tables(judge, answers.tables)
    occupied = {pool: occupancy(judge, pool, answers.tables, answers.held) for pool in questions.pools}
    for pool in questions.pools:
        _check_pool(judge, pool, answers, occupied[pool])
    for request in judge.live.values():
        read(judge, request, answers.tables, request.computed)
    for pool, free in answers.free.items():
        judge.kv.poison(pool, free)
    judge.progress.note(judge, answers, {pool: found.blocks for pool, found in occupied.items()})
    judge.unchanged = answers.tables
    judge.saw_evictable = judge.saw_evictable or answers.avail != answers.free_now
    judge.saw_growth = True
    checks.subject = None


def occupancy(judge: GroupedJudge, pool: str, tables: Tables, held: Held) -> Occupied:
    """Returns what live requests hold in a pool: what they say, else from what they need to what they name."""
    surely: dict[int, set[int]] = {}
    named: set[int] = set()
    states = 0
    for g, group in enumerate(judge.groups.groups):
        if group.pool != pool:
            continue
        surely[g] = set()
        for name, groups in held.items():
            known = groups[g]
            if known is not None:
                surely[g] |= known
                continue
            request, table = judge.live[name], tables[name].get(g, [])
            if group.kind == "state":
                states += group.units
            positions = needed(group, request.computed, request.computed)
            surely[g] |= _blocks((table[p] for p in positions if p < len(table)), group.block_size)
            named |= _blocks(table, group.block_size)
    return Occupied(surely, len(named.union(*surely.values())) + states)


def _blocks(slots: Iterable[int | None], size: int) -> set[int]:
    return {slot // size for slot in slots if slot is not None}


def _check_tables(judge: GroupedJudge, tables: Tables) -> None:
    """Each table by itself: its length, its slots, and what a window has left behind."""
    longest = judge.traits.max_length
    for name, groups in tables.items():
        judge.checks.subject = name
        for g, table in groups.items():
            group = judge.groups.groups[g]
            size = group.block_size
            slots = [slot for slot in table if slot is not None]
            if len(set(slots)) < len(slots):
                twice = next(slot for slot in slots if slots.count(slot) > 1)
                serves = [f"{name} position {p} in {judge.named(g)}" for p, slot in enumerate(table) if slot == twice]
                judge.checks.check(laws.no_aliasing, serves, twice, size)
            if longest is not None:
                most = -(-longest // size) + judge.traits.lookahead_blocks
                judge.checks.check(laws.table_limit, name, -(-len(table) // size), most, longest)
            if judge.traits.frees_window and group.kind in ("window", "chunked"):
                computed = judge.live[name].computed
                blocks = {p // size: slot // size for p, slot in enumerate(table) if slot is not None}
                first = needed(group, computed, computed).start
                judge.checks.check(window_freed, first, size, blocks, name=f"{name} in {judge.named(g)}")
    judge.checks.subject = None


def _check_pool(judge: GroupedJudge, pool: str, answers: GroupAnswers, occupied: Occupied) -> None:
    """What is free, what is held, and that both add up to the pool."""
    check, of = judge.checks.check, judge.of_pool(pool)
    total, avail, held = judge.groups.pools[pool], answers.avail[pool], len(occupied.blocks)
    limbo = occupied.unsure + (judge.limbo() if len(judge.groups.pools) == 1 else 0)
    check(one_group, {judge.named(g): blocks for g, blocks in occupied.surely.items()}, name=of)
    if judge.groups.shows_free:
        free = answers.free[pool]
        size = next(group.block_size for group in judge.groups.groups if group.pool == pool)
        check(laws.no_double_free, [block * size for block in free], size, name=of)
        for g, blocks in occupied.surely.items():
            size = judge.groups.groups[g].block_size
            tables = {f"{name} in group {g},": table.get(g, []) for name, table in answers.tables.items()}
            check(laws.eviction_safety, [block * size for block in free], blocks, size, tables, 1, name=of)
    judge.seen[pool] |= occupied.blocks
    check(laws.conservation, judge.seen[pool], total, 1, name=of)
    check(laws.leak_freedom, avail, held, total, list(judge.live), limbo, "block", name=of)
    check(laws.accounting, avail, held, total, limbo, 0, "block", name=of)
    check(laws.free_count, answers.free_now[pool], avail, "", (), 1, name=of)
