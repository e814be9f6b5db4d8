"""What an item of a batch names in each group: the slots of an attention group, the step of a state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.groups.answers import Table, step_of, table_of
from kvlockstep.models.requests.groups.content import WHOLE, Place
from kvlockstep.models.requests.groups.reading import Access, cover, stays
from kvlockstep.models.requests.groups.session import named
from kvlockstep.properties import kv_scheduler as laws
from kvlockstep.properties.law import ERROR_CONTRACT, counted
from kvlockstep.reference.kv_manager.groups.contract import Step, needed
from kvlockstep.reference.kv_scheduler.contract import Item

if TYPE_CHECKING:
    from kvlockstep.models.kv_scheduler.groups.judge import GroupedSchedulerJudge

USED = Access("", "which its batch reads or writes")


class Told(NamedTuple):
    """What the worker is told of an item: its slots in each attention group, and what it does with each state."""

    tables: dict[int, Table]
    steps: dict[int, Step]


def check_tables(judge: GroupedSchedulerJudge, item: Item) -> None:
    """Checks the tables of an item: each covers what it reads and writes, with the slots that the scheduler holds."""
    groups = judge.groups.groups
    if len(item.groups) != len(groups):
        said = f"an item of {item.rid} has tables for {len(item.groups)} of {len(groups)} groups"
        raise Divergence(ERROR_CONTRACT.id, said)
    held, schedule = judge.groups.tables([item.rid])[item.rid], judge.adapter.schedule
    tables = {g: table_of(item.groups[g], schedule) for g in judge.groups.attention}
    for g, table in tables.items():
        positions = needed(groups[g], item.start, item.start + item.n)
        cover(judge, item.rid, tables, g, positions, USED, prefix=item.rid)
        # Beside what it reads, the worker may have kept what the scheduler has let slide.
        read = slice(positions.start, positions.stop)
        judge.checks.check(
            laws.held_tables, table[read], held[g][read], positions.start, name=f"{item.rid} in group {g}"
        )
    steps = {g: step_of(item.groups[g], schedule) for g in judge.groups.states}
    for g, step in steps.items():
        saved = {position for position, _ in (*step.saves, *step.commits)}
        end = item.start + item.n - item.drafts
        must = [position for position in range(end, item.start + item.n + 1) if position not in saved]
        where = f" of {named(judge, g)}: no state is saved behind {counted(must[0], 'token')}" if must else ""
        judge.checks.check(laws.coverage, item.drafts + 1 - len(must), item.drafts + 1, where, name=item.rid)
        if not saved.issuperset(position for position, _ in step.checkpoints):
            said = f"{item.rid} copies a state to a checkpoint that its batch does not save: {step.checkpoints}"
            raise Divergence(ERROR_CONTRACT.id, said)
        kept = step.source is None or stays(step)
        if judge.traits.states_in_place and not kept:
            said = f"{item.rid} reads its state from block {step.source} and saves it elsewhere, with states_in_place"
            raise Divergence(ERROR_CONTRACT.id, said)
    judge.told[item.rid] = Told(tables, steps)


def cells_read(judge: GroupedSchedulerJudge, item: Item) -> Iterator[tuple[int, Place, int]]:
    """What an item reads and does not write: the group, the block and the offset of each cell."""
    for g, table in judge.told[item.rid].tables.items():
        positions = needed(judge.groups.groups[g], item.start, item.start + item.n)
        yield from _cells(judge, g, table, range(positions.start, item.start))
    for g, step in judge.told[item.rid].steps.items():
        if item.start and step.source is not None:
            yield g, (judge.groups.groups[g].pool, step.source), WHOLE


def cells_written(judge: GroupedSchedulerJudge, item: Item) -> Iterator[tuple[int, Place, int]]:
    """What an item writes: the group, the block and the offset of each cell."""
    stop = item.start + item.n
    for g, table in judge.told[item.rid].tables.items():
        yield from _cells(judge, g, table, range(item.start, stop))
    for g, step in judge.told[item.rid].steps.items():
        for position, block in (*step.saves, *step.checkpoints, *step.commits):
            if item.start < position <= stop:
                yield g, (judge.groups.groups[g].pool, block), WHOLE


def hit_blocks(judge: GroupedSchedulerJudge, item: Item) -> dict[int, list[Place]]:
    """The blocks of each group that an item reads of what is in front of it."""
    found: dict[int, dict[Place, None]] = {}
    for g, place, _ in cells_read(judge, item):
        found.setdefault(g, {})[place] = None
    return {g: list(blocks) for g, blocks in found.items()}


def _cells(judge: GroupedSchedulerJudge, g: int, table: Table, positions: range) -> Iterator[tuple[int, Place, int]]:
    group = judge.groups.groups[g]
    for position in positions:
        slot = table[position]
        assert slot is not None  # it was seen that all has slots
        yield g, (group.pool, slot // group.block_size), slot % group.block_size
