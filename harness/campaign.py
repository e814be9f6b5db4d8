"""`fuzz`: random episodes in several processes until the time is up.

Worker i of n runs the episodes i, i + n, i + 2n, ... of the seed, so what is found does not depend on n. A finding is
shrunk in the worker and written by the parent as soon as it arrives, so an interrupt loses nothing. A worker that
hangs is killed, one that dies is reported; its episode is repeated alone with a journal, and another worker goes on.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from kvlockstep.checking import shrink_failure
from kvlockstep.drivers.episode import Outcome, common, missed_goals
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.errors import UsageError
from kvlockstep.isolation import FORK, SharedWatchdog, how_it_died, isolated
from kvlockstep.models.model import Model
from kvlockstep.models.registry import model_of
from kvlockstep.profiles import Profile
from kvlockstep.targets import Target
from kvlockstep.trace import Trace, save_trace
from kvlockstep.watchdog import Watchdog

REPORT_SECONDS = 0.25
SHRINKS_PER_LAW = 4
POLL_SECONDS = 0.1


@dataclass
class Campaign:
    """What a campaign did so far. `findings` holds one trace per (contract, law, shape)."""

    target: Target
    seed: int
    jobs: int
    steps: int = 0
    episodes: int = 0
    failures: int = 0
    seconds: float = 0.0
    reach: Counter[str] = field(default_factory=Counter)
    not_checked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] | None = None
    findings: dict[str, tuple[Trace, Path]] = field(default_factory=dict)
    lost_workers: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def missed(self) -> tuple[str, ...]:
        return missed_goals(model_of(self.target.contract), self.reach, self.unreachable)


@dataclass
class _Report:
    """What a worker tells: work done since its last report, and at most one finding."""

    steps: int
    episodes: int
    reach: Counter[str]
    not_checked: dict[str, str]
    unreachable: set[str] | None
    failures: int = 0
    finding: Trace | None = None


@dataclass
class _Worker:
    number: int
    process: Any
    receive: Connection
    beat: Any
    episode: Any
    seen: int = -1
    since: float = 0.0


def fuzz(
    target: Target,
    profile: Profile,
    *,
    seconds: float,
    jobs: int,
    seed: int,
    directory: Path,
    progress: Callable[[Campaign], None] | None = None,
) -> Campaign:
    """Runs a campaign and answers its summary; an interrupt ends it early. Raises UsageError for bad arguments."""
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one worker is needed")
    if seconds <= 0:
        raise UsageError(f"--time {seconds:g}s: the time must be positive")
    require_writable(directory)
    campaign = Campaign(target, seed, jobs)
    started = time.monotonic()
    stop = FORK.Event()
    workers: list[_Worker] = []
    try:
        workers += [_start(campaign, profile, stop, number, number) for number in range(jobs)]
        while (left := seconds - (time.monotonic() - started)) > 0 and workers:
            for receive in wait([w.receive for w in workers], min(left, POLL_SECONDS)):
                worker = next(w for w in workers if w.receive is receive)
                if not _take(campaign, worker, directory):
                    workers.remove(worker)
                    _bury(campaign, profile, worker, directory, how_it_died(_joined(worker)))
                    workers.append(_start(campaign, profile, stop, worker.number, worker.episode.value + jobs))
            for worker in [w for w in workers if _hangs(w, profile.step_seconds)]:
                workers.remove(worker)
                worker.process.kill()
                _bury(campaign, profile, worker, directory, "it hung and was killed")
                workers.append(_start(campaign, profile, stop, worker.number, worker.episode.value + jobs))
            campaign.seconds = time.monotonic() - started
            if progress is not None:
                progress(campaign)
    except KeyboardInterrupt:
        campaign.interrupted = True
    finally:
        _finish(campaign, workers, stop, profile, directory)
        campaign.seconds = time.monotonic() - started
    return campaign


def require_writable(directory: Path) -> None:
    """Raises UsageError unless files can be written into the directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to directory {directory}: {error.strerror}; choose another with --dir"
        ) from error


def _start(campaign: Campaign, profile: Profile, stop: Any, number: int, first: int) -> _Worker:
    receive, send = FORK.Pipe(duplex=False)
    beat, episode = FORK.RawValue("Q", 0), FORK.RawValue("Q", first)
    arguments = (campaign.target, profile, campaign.seed, campaign.jobs, stop, send, beat, episode)
    process = FORK.Process(target=_work, args=arguments, daemon=True)
    process.start()
    send.close()
    return _Worker(number, process, receive, beat, episode, -1, time.monotonic())


def _work(
    target: Target, profile: Profile, seed: int, stride: int, stop: Any, send: Connection, beat: Any, episode: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    model_type = model_of(target.contract)
    shrunk: Counter[str] = Counter()
    watchdog = SharedWatchdog(profile.step_seconds, beat)
    reported = time.monotonic()
    report = _empty()
    while not stop.is_set():
        outcome = Outcome("random")
        with watchdog.watching():
            failure = run_episode(model_type, target.factory, seed, episode.value, watchdog, outcome)
        report.steps += outcome.steps
        report.episodes += 1
        report.reach += outcome.reach
        report.not_checked = outcome.not_checked or report.not_checked
        report.unreachable = common(report.unreachable, outcome.unreachable)
        if failure is not None:
            report.failures += 1
            shrunk[failure.law] += 1
            if shrunk[failure.law] <= SHRINKS_PER_LAW:
                report.finding = shrink_failure(target, failure.but(target=target.name), _in_process(profile))
        if report.finding is not None or time.monotonic() - reported > REPORT_SECONDS:
            beat.value += 1
            send.send(report)
            report, reported = _empty(), time.monotonic()
        episode.value += stride
    send.send(report)


def _in_process(profile: Profile) -> Profile:
    return Profile(profile.name, 0, 0, 0, 0, profile.step_seconds, min(profile.shrink_seconds, 10.0))


def _empty() -> _Report:
    return _Report(0, 0, Counter(), {}, None)


def _take(campaign: Campaign, worker: _Worker, directory: Path) -> bool:
    try:
        report = worker.receive.recv()
    except (EOFError, OSError):
        return False
    worker.since = time.monotonic()
    campaign.steps += report.steps
    campaign.episodes += report.episodes
    campaign.failures += report.failures
    campaign.reach += report.reach
    campaign.not_checked = report.not_checked or campaign.not_checked
    campaign.unreachable = common(campaign.unreachable, report.unreachable)
    if report.finding is not None:
        _keep(campaign, report.finding, directory)
    return True


def _keep(campaign: Campaign, finding: Trace, directory: Path) -> None:
    if finding.file_name not in campaign.findings:
        campaign.findings[finding.file_name] = (finding, save_trace(finding, directory))


def _hangs(worker: _Worker, step_seconds: float) -> bool:
    if worker.beat.value != worker.seen:
        worker.seen, worker.since = worker.beat.value, time.monotonic()
    return time.monotonic() - worker.since > 3 * step_seconds


def _joined(worker: _Worker) -> int | None:
    worker.process.join()
    code: int | None = worker.process.exitcode
    return code


def _bury(campaign: Campaign, profile: Profile, worker: _Worker, directory: Path, how: str) -> None:
    """Repeats the episode of a lost worker alone: if the target is to blame, it becomes a finding."""
    episode = worker.episode.value
    target = campaign.target

    def drive(model_type: type[Model[Any]], watchdog: Watchdog) -> Outcome:
        outcome = Outcome("random")
        outcome.failure = run_episode(model_type, target.factory, campaign.seed, episode, watchdog, outcome)
        return outcome

    journal = directory / f".journal-{worker.number}"
    outcome = isolated("random", model_of(target.contract), drive, profile.step_seconds, journal)
    verdict = "not repeated when run alone"
    if outcome.failure is not None:
        trace = outcome.failure.but(target=target.name, seed=campaign.seed, driver="random")
        alone = Profile(profile.name, 0, 0, 0, 0, min(profile.step_seconds, 1.0), profile.shrink_seconds, isolate=True)
        finding = shrink_failure(target, trace, alone)
        campaign.failures += 1
        _keep(campaign, finding, directory)
        verdict = f"the target did it: {finding.law}"
    campaign.lost_workers.append(f"worker {worker.number} in episode {episode}: {how}; {verdict}")


def _finish(campaign: Campaign, workers: list[_Worker], stop: Any, profile: Profile, directory: Path) -> None:
    stop.set()
    deadline = time.monotonic() + profile.step_seconds + 15
    for worker in workers:
        while worker.receive.poll(max(0.0, deadline - time.monotonic())):
            if not _take(campaign, worker, directory):
                break
        worker.process.kill()
        worker.process.join()
