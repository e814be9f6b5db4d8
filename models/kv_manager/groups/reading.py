"""The forward of a kv_manager with groups: what is written over is read, all is written, then every request reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlockstep.models.kv_manager.groups.goals import notice_rolling
from kvlockstep.models.requests.groups.reading import read, read_rolling, read_state, save, write
from kvlockstep.properties.kv_manager import laws
from kvlockstep.reference.kv_manager.groups.contract import Step

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge


def write_and_read(judge: GroupedJudge) -> None:
    """Reads states and rolling groups of what is scheduled, writes it, saves its states, then reads every request."""
    judge.kv.begin_forward()
    questions, live = judge.groups, judge.live
    tables = questions.tables(live)
    steps = {(name, g): questions.state(name, g) for name in judge.scheduled for g in questions.states}
    stops = {name: request.computed + request.pending for name, request in live.items()}
    # Before anything is saved or written: a state is rewritten where it stands, and so is a rolling group.
    for (name, g), step in steps.items():
        read_state(judge, live[name], g, step)
        judge.goals_met["state_in_place_across"] += _across(live[name].computed, questions.groups[g].block_size, step)
    for name in judge.scheduled:
        read_rolling(judge, live[name], tables)
        notice_rolling(judge, live[name], tables[name])
    for name in judge.scheduled:
        write(judge, live[name], tables[name], stops[name])
    for (name, g), step in steps.items():
        save(judge, live[name], g, step, stops[name])
    for name, request in live.items():
        judge.evaluated[laws.write_isolation.id] += any(writer != name for writer in judge.scheduled)
        read(judge, request, tables, stops[name])


def _across(start: int, size: int, step: Step) -> bool:
    """Tells whether a step that begins within a block of the grid leaves its state in place behind the block's end."""
    end = (start // size + 1) * size
    return start % size > 0 and any(position > end and block == step.source for position, block in step.saves)
