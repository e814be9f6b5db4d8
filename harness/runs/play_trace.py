"""Playing a trace again on its target, in a child process where that is possible."""

from __future__ import annotations

from pathlib import Path

from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace, place_of
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Replayed, play_ops, run_ops
from kvlockstep.models.core.op import Unplayable
from kvlockstep.models.registry import model_of
from kvlockstep.runs.supervising import play_ops_supervised, supervises
from kvlockstep.targets.registry import Target


def play_trace(target: Target, trace: Trace, profile: Profile, path: Path | None = None) -> Replayed:
    """Plays a trace under supervision where that is possible.

    Raises UsageError, naming `path` and the line, for an operation that cannot be played on any target.
    """
    watchdog = Watchdog(profile.step_seconds)
    arguments = model_of(target.contract), target.factory, trace.scope, trace.ops, watchdog
    try:
        if supervises(target):
            return play_ops_supervised(*arguments)
        with watchdog.watching():
            return play_ops(*arguments)
    except Unplayable as error:
        if path is None:
            raise
        raise UsageError(f"{place_of(path, error.number)}: malformed trace: {error.reason}") from error


def replay_trace(target: Target, trace: Trace, profile: Profile) -> Trace | None:
    """Plays a trace as `play_trace` does; returns the failure, None if every law held."""
    return play_trace(target, trace, profile).failure


def play_here(target: Target, trace: Trace, profile: Profile) -> Trace | None:
    """Plays a trace in this process, whatever the target may do to it; returns the failure, None if every law held."""
    watchdog = Watchdog(profile.step_seconds)
    with watchdog.watching():
        return run_ops(model_of(target.contract), target.factory, trace.scope, trace.ops, watchdog)
