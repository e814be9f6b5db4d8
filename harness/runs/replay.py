"""`replay` of saved traces: each one twice, since a target need not do the same again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvlockstep.core.errors import UsageError
from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace, peek
from kvlockstep.drivers.episode import Outcome, unapplied
from kvlockstep.runs.play_trace import play_trace
from kvlockstep.runs.results import HOLDS, INCONCLUSIVE, VIOLATED, DriverResult, result_of
from kvlockstep.runs.saved_traces import traces_below
from kvlockstep.targets import Target
from kvlockstep.targets.trusting import target_of


@dataclass(frozen=True)
class Replay:
    """The result of one trace: a word (FIXED, HOLDS, VIOLATED, FLAKY, NOT APPLICABLE), the page to show, the run.

    `reason` is the rest of its verdict line, if there is more to say than the word.
    """

    path: Path
    word: str
    page: str
    run: DriverResult
    reason: str = ""

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"{self.word} {self.path}{f': {self.reason}' if self.reason else ''}"


def replay_twice(target: Target, trace: Trace, path: Path) -> Replay:
    """Plays a trace two times. Raises UsageError, naming file and line, if it cannot be played at all."""
    profile = profile_of("quick")
    first, second = (play_trace(target, trace, profile, path) for _ in range(2))
    failure = first.failure or second.failure
    outcome = Outcome("replay", steps=2 * len(trace.ops), evaluated=first.evaluated + second.evaluated)
    if failure is None:
        if reason := unapplied(trace, first) or unapplied(trace, second):
            return _not_applicable(target, trace, path, outcome, reason)
        word = "FIXED" if trace.law else "HOLDS"
        page = f"{trace.contract} on {target.name}: {len(trace.ops)} operations, every law held"
        return Replay(path, word, page, result_of(trace.contract, target.name, outcome))
    flaky = first.failure is None or second.failure is None or first.failure.law != second.failure.law
    kept = {"original": trace.original, "unfinished": trace.unfinished}
    outcome.failure = failure.but(target=target.name, flaky=flaky, **kept)
    run = result_of(trace.contract, target.name, outcome, path)
    page = failure_page(outcome.failure, path)
    return Replay(path, "FLAKY" if flaky else "VIOLATED", page, run, f"{failure.law}: {failure.message}")


def _not_applicable(target: Target, trace: Trace, path: Path, outcome: Outcome, reason: str) -> Replay:
    run = result_of(trace.contract, target.name, outcome)
    run.verdict, run.note = INCONCLUSIVE, f"not applicable: {reason}"
    run.cut = run.note
    page = f"{trace.contract} on {target.name}: {len(trace.ops)} operations, no law was violated, but {reason}"
    return Replay(path, "NOT APPLICABLE", page, run, reason)


@dataclass(frozen=True)
class Wanted:
    """A trace that is to be played, and on what."""

    path: Path
    trace: Trace
    target: Target


def wanted_traces(
    sources: Sequence[Path], given: str | None, configured: Mapping[str, Sequence[str]], trust: bool
) -> tuple[list[Wanted], list[str]]:
    """The traces of files and directories with their targets, and what was left out of directories.

    Raises UsageError for the first trace that is damaged or not trusted, and if there is none: before any is played.
    """
    paths, notes = _paths_of(sources)
    traces = [(path, load_trace(path)) for path in paths]
    wanted = [
        Wanted(path, trace, target_of(trace, path, given, configured.get(trace.contract, ()), trust))
        for path, trace in traces
    ]
    return wanted, notes


def _paths_of(sources: Iterable[Path]) -> tuple[list[Path], list[str]]:
    paths: list[Path] = []
    notes: list[str] = []
    for source in sources:
        if not source.is_dir():
            paths.append(source)
            continue
        below = traces_below(source)
        notes += [f"{path}: not a kvlockstep trace, skipped" for path in below if peek(path) is None]
        here = [path for path in below if peek(path) is not None]
        if not here:
            raise UsageError(f"{source}: no trace is in this directory")
        paths += here
    return list(dict.fromkeys(paths)), notes


def worst_of(replays: Sequence[Replay]) -> Replay:
    """The replay whose verdict is that of all."""
    severity = (HOLDS, INCONCLUSIVE, VIOLATED)
    return max(replays, key=lambda replay: severity.index(replay.run.verdict))
