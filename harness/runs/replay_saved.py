"""The first part of a check: the traces that earlier checks saved for the same target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import Outcome, Replayed, changed_answer, unapplied
from kvlockstep.runs.play_trace import play_trace
from kvlockstep.runs.progress import Emit, Progress
from kvlockstep.runs.results import INCONCLUSIVE, TargetResult, result_of
from kvlockstep.runs.saved_traces import named_by_us, traces_for
from kvlockstep.targets.registry import Target


def replay_saved(
    target: Target, directory: Path, profile: Profile, result: TargetResult, emit: Emit, note: Callable[[str], None]
) -> None:
    """Replays the traces in the directory that are for this target.

    One that a check left and that no longer fails is FIXED and goes. One that says nothing about the target any more,
    since not all of it applies, stays, and leaves the check inconclusive. `note` adds a sentence to the result's notes.
    """
    if not directory.is_dir():
        return
    traces, skipped = traces_for(target.contract, target.name, directory)
    for text in skipped:
        note(text)
    for path, trace in traces:
        emit(Progress("begin", target.contract, target.name, "replay"))
        again = play_trace(target, trace, profile, path)
        outcome = Outcome("replay", steps=len(trace.ops), evaluated=again.evaluated)
        if again.failure is not None:
            outcome.steps = len(again.failure.ops)
            outcome.failure = again.failure.but(
                target=target.name, original=trace.original, unfinished=trace.unfinished
            )
            note(f"STILL FAILS {path.name}: no new episodes are played until it is fixed")
        elif reason := unapplied(trace, again):
            note(f"NOT APPLICABLE {path.name}: {reason}; delete the file if that is intended")
        else:
            note(_held(path, trace, again))
            continue
        done = result_of(target.contract, target.name, outcome, path)
        if again.failure is None:
            done.verdict, done.note = INCONCLUSIVE, result.notes[-1]
            done.cut = done.note
        result.runs.append(done)
        emit(Progress("end", target.contract, target.name, "replay", outcome.steps, done))


def _held(path: Path, trace: Trace, again: Replayed) -> str:
    """The note on a trace that no longer fails; removes the file if a check named it and its law was evaluated."""
    if not trace.law:
        return f"HOLDS {path.name}"
    if not again.judged(trace.law):
        changed = changed_answer(trace, again)
        return f"FIXED {path.name}: {changed}; the file is kept, since {trace.law} has nothing to judge there"
    if not named_by_us(path):
        return f"FIXED {path.name}: {trace.law} holds now; the file is kept, since kvlockstep did not name it"
    path.unlink(missing_ok=True)
    return f"FIXED {path.name}: {trace.law} holds now, the file is removed"
