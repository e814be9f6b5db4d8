"""The forward of a kv_manager with groups: states are read, everything is written, then every request reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvlockstep.models.requests.groups.reading import read, read_state, save, write
from kvlockstep.properties.kv_manager import laws

if TYPE_CHECKING:
    from kvlockstep.models.kv_manager.groups.judge import GroupedJudge


def write_and_read(judge: GroupedJudge) -> None:
    """Reads the states of what is scheduled, writes it and saves its states, then reads every live request."""
    judge.kv.begin_forward()
    questions, live = judge.groups, judge.live
    tables = questions.tables(live)
    steps = {(name, g): questions.state(name, g) for name in judge.scheduled for g in questions.states}
    stops = {name: request.computed + request.pending for name, request in live.items()}
    # Before anything is saved: a state is rewritten where it stands.
    for (name, g), step in steps.items():
        read_state(judge, live[name], g, step)
    for name in judge.scheduled:
        write(judge, live[name], tables[name], stops[name])
    for (name, g), step in steps.items():
        save(judge, live[name], g, step, stops[name])
    for name, request in live.items():
        judge.evaluated[laws.write_isolation.id] += any(writer != name for writer in judge.scheduled)
        read(judge, request, tables, stops[name])
