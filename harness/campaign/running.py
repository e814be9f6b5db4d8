"""`fuzz`: hands out shards until the time is up, and keeps their results.

A record of a shard holds its failures as they were. So a campaign that is killed at any point resumes with nothing
lost: a shard without a record in the store is played again, and a failure that is not shrunk yet is shrunk then.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kvlockstep.campaign.ledger import KNOWN_EXAMPLE, Failure, Ledger, Record
from kvlockstep.campaign.plan import SHARD_EPISODES, Plan, plan_of, require_same
from kvlockstep.campaign.shard import ShardReport, kind_of
from kvlockstep.campaign.store import CORPUS, FINDINGS, FIXED, DirectoryStore, Store, finding_in
from kvlockstep.campaign.summary import Campaign, status_of
from kvlockstep.campaign.tasks import RECORD, REUSE, SHARD, SHRINK, Task
from kvlockstep.campaign.workers import Done, LocalWorkers, Workers
from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import Profile
from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import unapplied
from kvlockstep.runs.play_trace import play_trace
from kvlockstep.targets import Target

COMMIT_SECONDS = 0.25
STATUS_SECONDS = 2.0
POLL_SECONDS = 0.1
# After the time is up: for shards that were begun, and for failures that are to be shrunk.
GRACE_SECONDS = 300.0
# After the time is up, for traces of the corpus; what is left of them is recorded by the next run.
CORPUS_SECONDS = 10.0
UNSHRUNK = "unshrunk-"

MakeWorkers = Callable[[Target, Plan, int | None, str], Workers]
Progress = Callable[[Campaign], None]


def local_workers(target: Target, plan: Plan, jobs: int | None, database: str) -> Workers:
    """Processes of this machine, one by default."""
    return LocalWorkers(target.factory, plan, jobs or 1, database)


def fuzz(
    target: Target,
    profile: Profile,
    *,
    seconds: float,
    jobs: int | None = None,
    seed: int = 0,
    directory: Path | None = None,
    store: Store | None = None,
    driver: str = "random",
    shards: int | None = None,
    shard_episodes: int = SHARD_EPISODES,
    make_workers: MakeWorkers = local_workers,
    progress: Progress | None = None,
) -> Campaign:
    """Starts the campaign in `store` or `directory`, or resumes it, until the time is up or `shards` are done.

    An interrupt ends it early. Raises UsageError for bad arguments, for a campaign made with other ones, and if
    the store cannot be written.
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least one worker is needed")
    if seconds <= 0:
        raise UsageError(f"--time {seconds:g}s: the time must be positive")
    plan = plan_of(target, profile, seed, driver, shard_episodes)
    if store is None:
        assert directory is not None
        store = DirectoryStore(directory)
    with store.lock():
        saved = store.load()
        if saved is None:
            store.begin(plan)
        else:
            require_same(plan, saved.plan, store.place, store.way_out)
        ledger = saved.ledger if saved is not None else Ledger()
        campaign = Campaign(target, plan, ledger)
        if saved is not None and progress is not None:
            progress(campaign)
        run = _Run(campaign, store, progress)
        run.replay_findings(profile)
        workers = make_workers(target, plan, jobs, store.database())
        campaign.jobs = workers.jobs
        try:
            run.go(workers, seconds, shards)
        finally:
            workers.close()
        run.end()
    return campaign


class _Run:
    """One run of a campaign: `pending` are records that are applied and not stored yet."""

    def __init__(self, campaign: Campaign, store: Store, progress: Progress | None) -> None:
        self.campaign = campaign
        self.ledger = campaign.ledger
        self.store = store
        self.progress = progress
        self.pending: list[Record] = []
        self.begun: set[int] = set()
        self.asked: set[tuple[str, int, str]] = set()
        self.started = self.committed = time.monotonic()
        self.told = 0.0
        self.steps_before = self.ledger.steps
        self.interrupts = 0

    def go(self, workers: Workers, seconds: float, shards: int | None) -> None:
        """Runs until the time is up or the shards are done, and the begun tasks have ended."""
        self.started = self.committed = time.monotonic()
        deadline = self.started + seconds
        with self._interruptible():
            while self.interrupts < 2 and time.monotonic() < deadline + GRACE_SECONDS:
                over = self.campaign.interrupted or time.monotonic() >= deadline
                late = time.monotonic() >= deadline + CORPUS_SECONDS
                while workers.free() > 0 and (task := self._next(over, late, shards)) is not None:
                    workers.submit(task)
                if not self.begun and not self.asked:
                    return
                for done in workers.collect(POLL_SECONDS):
                    self._take(done)
                for text in workers.lost():
                    self._record({"record": "lost", "text": text})
                self._commit()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C ends the run as the time does, the second without waiting for what was begun."""

        def interrupted(_number: int, _frame: FrameType | None) -> None:
            self.interrupts += 1
            self.campaign.interrupted = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, former)

    def end(self) -> None:
        """Stores the rest; failures that there was no time to shrink are kept as they are until the next run."""
        self._commit(now=True)
        for failure in self.ledger.unshrunk:
            name = UNSHRUNK + failure.trace.file_name
            self.campaign.findings[name] = (failure.trace, self.store.put_trace(FINDINGS, name, failure.trace))
        self.store.put_status(status_of(self.campaign.plan.to_json(), self.ledger))

    def replay_findings(self, profile: Profile) -> None:
        """Replays the findings of earlier runs. One that no longer fails is fixed, and its kind is shrunk again."""
        for failure in self.ledger.unshrunk:
            self.store.drop_trace(FINDINGS, UNSHRUNK + failure.trace.file_name)
        for name in list(self.ledger.findings):
            trace, path = finding_in(self.store, name, self.campaign.plan.contract)
            again = None if trace.flaky else play_trace(self.campaign.target, trace, profile, path)
            reason = unapplied(trace, again) if again is not None and again.failure is None else ""
            if again is None or again.failure is not None or reason:
                self.campaign.findings[name] = (trace, path)
                if reason:
                    self.campaign.notes.append(f"NOT APPLICABLE {name}: {reason}; the trace is kept")
                self._commit()
                continue
            kept = self.store.put_trace(FIXED, name, trace)
            self.store.drop_trace(FINDINGS, name)
            self._record({"record": "fixed", "file": name})
            self.campaign.notes.append(f"FIXED {name}: {trace.law} holds now; the trace is in {kept}")

    def _next(self, over: bool, late: bool, shards: int | None) -> Task | None:
        for small in self.ledger.tasks():
            if _key(small) not in self.asked and not (late and small.kind == RECORD):
                self.asked.add(_key(small))
                return small
        if self.campaign.plan.driver == "hypothesis" and not self.ledger.reused:
            return self._reuse()
        task = None if over else self.ledger.next_shard(self.begun)
        if task is None or (shards is not None and task.number >= shards):
            return None
        self.begun.add(task.number)
        return task

    def _reuse(self) -> Task | None:
        """No shard is begun until known examples are played, for shards add to them."""
        task = Task(REUSE, 0)
        if _key(task) in self.asked:
            return None
        self.asked.add(_key(task))
        return task

    def _take(self, done: Done) -> None:
        task, result = done
        if task.kind == SHARD:
            assert isinstance(result, ShardReport)
            self.begun.discard(task.number)
            result.first = {kind: first for kind, first in result.first.items() if self.ledger.wanted(kind)}
            self._record({"record": "shard", "report": result.to_json()})
            return
        self.asked.discard(_key(task))
        if task.kind == SHRINK and isinstance(result, Trace):
            self._keep_finding(task, result)
        elif task.kind == REUSE:
            failure = None
            if isinstance(result, Trace):
                plan = self.campaign.plan
                trace = result.but(target=plan.target, driver=plan.driver, seed=plan.seed)
                failure = Failure(kind_of(trace), KNOWN_EXAMPLE, trace).to_json()
            self._record({"record": "reused", "failure": failure})
        elif task.kind == RECORD:
            self._keep_corpus(task, result if isinstance(result, Trace) else None)

    def _keep_finding(self, task: Task, trace: Trace) -> None:
        assert task.trace is not None
        name, kind = trace.file_name, kind_of(task.trace)
        if self.ledger.wins(name, task.number):
            self.campaign.findings[name] = (trace, self.store.put_trace(FINDINGS, name, trace))
        self._record({"record": "finding", "file": name, "episode": task.number, "kind": kind})
        self._commit(now=True)

    def _keep_corpus(self, task: Task, trace: Trace | None) -> None:
        steps, episode = self.ledger.shortest[task.goal]
        if episode != task.number:
            return
        if trace is not None:
            self.store.put_trace(CORPUS, f"{self.campaign.plan.contract}-{task.goal}.jsonl", trace)
        self._record({"record": "corpus", "goal": task.goal, "steps": steps, "episode": episode})

    def _record(self, record: Record) -> None:
        self.ledger.apply(record)
        self.pending.append(record)

    def _commit(self, now: bool = False) -> None:
        clock = time.monotonic()
        if not now and clock - self.committed < COMMIT_SECONDS:
            return
        self._record({"record": "time", "seconds": round(clock - self.committed, 3)})
        self.committed = clock
        self.campaign.run_steps = self.ledger.steps - self.steps_before
        self.campaign.run_seconds = clock - self.started
        self.store.append(self.pending, self.ledger)
        self.pending = []
        if self.progress is not None:
            self.progress(self.campaign)
        if clock - self.told > STATUS_SECONDS:
            self.told = clock
            self.store.put_status(status_of(self.campaign.plan.to_json(), self.ledger))


def _key(task: Task) -> tuple[str, int, str]:
    """Key of a task beside shards, the same each time it is done again."""
    return task.kind, task.number, task.goal
