"""Reads, writes and copies of a kv_manager with groups: positions by the function `needed`, states by their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvlockstep.models.kv_manager.groups.answers import Copy, Tables
from kvlockstep.models.requests.request import Request, require_right
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.kv_manager.groups import state_soundness
from kvlockstep.reference.kv_manager.groups.contract import Step, needed

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge

CONTENT = laws.prefix_soundness, laws.write_isolation, laws.content_equality


def copy(judge: GroupedJudge, due: Sequence[Copy]) -> None:
    """Makes the copies of whole blocks."""
    sources: dict[tuple[str, int], int] = {}
    for pool, source, target in due:
        if sources.setdefault((pool, target), source) != source:
            two = [f"a copy from block {s}" for s in (sources[pool, target], source)]
            size = next(group.block_size for group in judge.groups.groups if group.pool == pool)
            judge.checks.check(laws.no_aliasing, two, target * size, size, name=judge.of_pool(pool))
    judge.kv.copy(due)
    judge.goals_met["copies"] += bool(due)


def write_and_read(judge: GroupedJudge) -> None:
    """Reads the states of what is scheduled, writes it and saves its states, then reads every live request."""
    judge.kv.begin_forward()
    questions, live = judge.groups, judge.live
    tables = questions.tables(live)
    steps = {(name, g): questions.state(name, g) for name in judge.scheduled for g in questions.states}
    # Before anything is saved: a state is rewritten where it stands.
    for (name, g), step in steps.items():
        _read_state(judge, live[name], g, step)
    for name in judge.scheduled:
        _write(judge, live[name], tables)
    for (name, g), step in steps.items():
        _save(judge, live[name], g, step)
    for name, request in live.items():
        judge.evaluated[laws.write_isolation.id] += any(writer != name for writer in judge.scheduled)
        read(judge, request, tables, request.computed + request.pending)


def read(judge: GroupedJudge, request: Request, tables: Tables, stop: int) -> None:
    """Reads what a forward over [computed, stop) reads in every group."""
    checks = judge.checks
    checks.subject = request.name
    for g in judge.groups.attention:
        positions = needed(judge.groups.groups[g], request.computed, stop)
        cover(judge, request, tables, g, positions)
        checks.evaluated[laws.prefix_soundness.id] += positions.start < request.hit
        checks.evaluated[laws.content_equality.id] += bool(positions)
        cell = judge.kv.first_wrong(request, g, tables[request.name][g], positions)
        if cell is not None:
            cell = cell._replace(also=_also(judge, request, tables, g, cell.slot))
            require_right(request, cell, [checks.of(law) for law in CONTENT])


def cover(judge: GroupedJudge, request: Request, tables: Tables, g: int, positions: range) -> None:
    """Raises Divergence unless each of the positions has a slot in the group."""
    table = tables[request.name][g]
    missing = [p for p in positions if p >= len(table) or table[p] is None]
    where = f" of {judge.named(g)}: position {missing[0]} has none" if missing else ""
    judge.checks.check(laws.coverage, len(positions) - len(missing), len(positions), where)


def _read_state(judge: GroupedJudge, request: Request, g: int, step: Step) -> None:
    judge.checks.subject = request.name
    if not request.computed:
        return
    wrong = ("nothing", "the state") if step.source is None else judge.kv.wrong_state(request, g, step.source)
    got, want = wrong or ("", "")
    judge.checks.check(state_soundness, request.computed, step.source, got, want, name=request.name)
    judge.goals_met["state_in_place"] += step.source in [block for _, block in step.saves]
    judge.goals_met["state_moves"] += step.source not in [block for _, block in step.saves]


def _write(judge: GroupedJudge, request: Request, tables: Tables) -> None:
    judge.checks.subject = request.name
    positions = range(request.computed, request.computed + request.pending)
    for g in judge.groups.attention:
        cover(judge, request, tables, g, positions)
        judge.checks.evaluated[laws.no_aliasing.id] += 1
        conflict = judge.kv.write(request, g, tables[request.name][g], positions)
        if conflict is not None:
            slot, other = conflict
            two = [f"{other} and {request.name} in {judge.named(g)}"]
            judge.checks.check(laws.no_aliasing, two, slot, judge.groups.groups[g].block_size)


def _save(judge: GroupedJudge, request: Request, g: int, step: Step) -> None:
    """Saves the states of a step, of which one is behind each token that may turn out to be the last."""
    judge.checks.subject = request.name
    first, stop = max(request.computed + 1, len(request.tokens)), request.computed + request.pending
    must = range(min(first, stop), stop + 1)
    saved = {position for position, _ in step.saves}
    missing = [position for position in must if position not in saved]
    where = f" of {judge.named(g)}: no state is saved behind {missing[0]} tokens" if missing else ""
    judge.checks.check(laws.coverage, len(must) - len(missing), len(must), where)
    for position, block in step.saves:
        if not request.computed < position <= stop:
            continue
        other = judge.kv.save(request, g, position, block)
        if other is not None:
            two = [f"the state of {other}", f"that of {request.name} behind {position} tokens"]
            size = judge.groups.groups[g].block_size
            judge.checks.check(laws.no_aliasing, two, block * size, size, name=judge.named(g))


def _also(judge: GroupedJudge, request: Request, tables: Tables, g: int, slot: int) -> tuple[str, ...]:
    """The positions of other requests that the slot serves in the group."""
    return tuple(
        f"{name} position {p}"
        for name, groups in tables.items()
        if name != request.name
        for p, other in enumerate(groups[g])
        if other == slot
    )
