"""Tasks of a worker, and their execution."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from kvlockstep.campaign.plan import Plan
from kvlockstep.campaign.playing import reuse_examples, shard_driver
from kvlockstep.campaign.shard import Began, ShardReport, kind_of, record_episode, run_shard
from kvlockstep.core.capture import forget_output, printing
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.shrink import ShrinkBudget, shrink
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import TERMINATION
from kvlockstep.runs.supervising import ends_processes, run_ops_supervised, supervised

SHARD, SHRINK, RECORD, REUSE = "shard", "shrink", "record", "reuse"
ISOLATED_STEP_SECONDS = 1.0


class Task(NamedTuple):
    """Task to play a shard, shrink a failing trace, record how an episode met a goal, or replay known examples.

    `number` is the shard or the episode. If a worker was lost, the task is done again: `lost` says how, and `episode`
    where. The worker then runs it in children, since the target may be what killed the worker.
    """

    kind: str
    number: int
    trace: Trace | None = None
    goal: str = ""
    lost: tuple[str, ...] = ()
    episode: int = 0

    def again(self, how: str, episode: int) -> Task:
        """The task to be done after its worker was lost."""
        return self._replace(lost=(*self.lost, how), episode=episode)


def uses_children(task: Task) -> bool:
    """True if the worker runs code that may hang or die in children of its own."""
    if task.kind == SHRINK:
        assert task.trace is not None
        # Shrinking in children comes to another end, so one worker that was lost by chance must not lead there.
        return len(task.lost) > 1 or ends_processes(task.trace)
    return task.kind == SHARD and bool(task.lost)


def do_task(
    factory: Factory, plan: Plan, task: Task, watchdog: Watchdog, began: Began, database: str = ""
) -> ShardReport | Trace | None:
    """The result of a task: the report of a shard, or a trace."""
    if task.kind == SHRINK:
        assert task.trace is not None
        return _shrunk(factory, plan, task.trace, watchdog, uses_children(task))
    if task.lost and task.kind == SHARD:
        return _shard_again(factory, plan, task)
    with watchdog.watching():
        if task.kind == REUSE:
            return reuse_examples(printing(model_of(plan.contract)), factory, plan.seed, watchdog, database)
        if task.kind == RECORD:
            return record_episode(factory, plan, task.number, task.goal, watchdog)
        return run_shard(factory, plan, task.number, watchdog, began=partial(_begin, began), database=database)


def _begin(began: Began, episode: int) -> None:
    forget_output()
    began(episode)


def _shrunk(factory: Factory, plan: Plan, trace: Trace, watchdog: Watchdog, apart: bool) -> Trace:
    model_type, budget = model_of(plan.contract), ShrinkBudget(plan.shrink_steps)
    if not apart:
        with watchdog.watching():
            return shrink(printing(model_type), factory, trace, watchdog, budget)
    with watchdog.at_most(watchdog.limit if trace.law == TERMINATION.id else ISOLATED_STEP_SECONDS):
        return shrink(model_type, factory, trace, watchdog, budget, run_ops_supervised)


def _shard_again(factory: Factory, plan: Plan, task: Task) -> ShardReport:
    """Plays a shard whose worker was lost. If the target did it, that is a failure, and ends the shard."""
    episodes, where = plan.episodes(task.number), f"episode {task.episode}: {task.lost[-1]}"
    first = task.episode if shard_driver(plan.driver).alone else episodes.start
    _, fatal = _apart(factory, plan, task.number, range(first, task.episode + 1))
    report, other = _apart(
        factory, plan, task.number, episodes if fatal is None else range(episodes.start, task.episode)
    )
    report = report or ShardReport(task.number)
    if (trace := fatal or other) is not None:
        report.absorb(task.episode, Outcome(plan.driver, len(trace.ops), 1, failure=trace))
        report.lost.append(f"{where}; the target is the cause: {kind_of(trace)}")
    else:
        report.lost.append(f"{where}; not repeated when run alone")
    return report


def _apart(factory: Factory, plan: Plan, shard: int, episodes: range) -> tuple[ShardReport, None] | tuple[None, Trace]:
    """Plays episodes of a shard in a child. If they end their process, returns the trace that did it."""

    def drive(model_type: type[Model[Any]], watchdog: Watchdog) -> Outcome:
        report = run_shard(factory, plan, shard, watchdog, episodes=episodes, model_type=model_type)
        return Outcome(plan.driver, facts={"report": report})

    outcome = supervised(plan.driver, model_of(plan.contract), drive, plan.step_seconds)
    if outcome.failure is None:
        return outcome.facts["report"], None
    return None, outcome.failure.but(target=plan.target, seed=plan.seed)
