"""The unit of work: the episodes of one shard, played in this process.

What a shard reports depends on nothing but the plan and its number, so it may run on any machine, and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.campaign.plan import Plan
from kvlockstep.campaign.playing import shard_driver, shard_of
from kvlockstep.core.trace import Trace, parse_trace, trace_text
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import Shard
from kvlockstep.drivers.episode import Outcome, common, run_ops
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import TERMINATION

Began = Callable[[int], None]


@dataclass
class ShardReport:
    """Results of the episodes of a shard.

    `first` has for each kind of failure the first episode that failed in this way, with its trace as it was.
    `shortest` has for each goal the shortest episode that met it, as (steps, episode). `states` are hashes of the
    states in the sampled episodes. `lost` says how workers were lost.
    """

    shard: int
    steps: int = 0
    episodes: int = 0
    failures: int = 0
    reach: Counter[str] = field(default_factory=Counter)
    not_checked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] | None = None
    first: dict[str, tuple[int, Trace]] = field(default_factory=dict)
    shortest: dict[str, tuple[int, int]] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    evaluated: Counter[str] = field(default_factory=Counter)

    def absorb(self, episode: int, outcome: Outcome) -> None:
        """Takes over one episode."""
        self.steps += outcome.steps
        self.episodes += outcome.states
        self.reach.update(outcome.reach)
        self.evaluated.update(outcome.evaluated)
        self.states |= outcome.seen if shard_driver(outcome.driver).each else set()
        self.not_checked = outcome.not_checked or self.not_checked
        self.unreachable = common(self.unreachable, outcome.unreachable)
        for goal, times in outcome.reach.items() if shard_driver(outcome.driver).each else ():
            if times:
                self.shortest[goal] = min((outcome.steps, episode), self.shortest.get(goal, (outcome.steps, episode)))
        if outcome.failure is not None:
            self.failures += 1
            self.first.setdefault(kind_of(outcome.failure), (episode, outcome.failure))

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "reach": dict(self.reach),
            "evaluated": dict(self.evaluated),
            "states": sorted(self.states),
            "unreachable": None if self.unreachable is None else sorted(self.unreachable),
            "first": {kind: [episode, trace_text(trace)] for kind, (episode, trace) in self.first.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardReport:
        first = {kind: (episode, parse_trace(text, "journal")) for kind, (episode, text) in values["first"].items()}
        unreachable = None if values["unreachable"] is None else set(values["unreachable"])
        shortest = {goal: (steps, episode) for goal, (steps, episode) in values["shortest"].items()}
        reach, states = Counter(values["reach"]), set(values["states"])
        evaluated = Counter(values.get("evaluated", {}))
        changed = {
            "reach": reach,
            "evaluated": evaluated,
            "states": states,
            "unreachable": unreachable,
            "first": first,
            "shortest": shortest,
        }
        return cls(**{**values, **changed})


def kind_of(trace: Trace) -> str:
    """Failures of one kind violate the same law at the same operation."""
    return f"{trace.law} at {trace.ops[-1].name if trace.ops else 'start'}"


def run_shard(
    factory: Factory,
    plan: Plan,
    shard: int,
    watchdog: Watchdog,
    *,
    episodes: range | None = None,
    began: Began | None = None,
    model_type: type[Model[Any]] | None = None,
    database: str = "",
) -> ShardReport:
    """Plays a shard, or only these `episodes` of it. `began` hears of each episode beforehand.

    A call that hangs ends the shard: others would too, and each takes as long as a thousand episodes. If it does not
    when repeated, the shard is played again.
    """
    numbers = plan.episodes(shard) if episodes is None else episodes
    model_type = model_type or model_of(plan.contract)
    played = shard_of(shard_driver(plan.driver), model_type, factory, plan.seed, numbers, watchdog, database)
    report = _play(plan, shard, played, began)
    hangs = [trace for _, trace in report.first.values() if trace.law == TERMINATION.id]
    if hangs and run_ops(model_type, factory, hangs[0].scope, hangs[0].ops, watchdog) is None:
        # It was slow for once: on a busy machine, or where it built something.
        report = _play(plan, shard, played, began)
    return report


def _play(plan: Plan, number: int, shard: Shard, began: Began | None) -> ShardReport:
    report = ShardReport(number)
    if began is not None:
        began(shard.episodes.start)
    for episode, outcome in zip(shard.episodes, shard_driver(plan.driver).play(shard), strict=False):
        if outcome.failure is not None:
            outcome.failure = outcome.failure.but(target=plan.target)
        report.absorb(episode, outcome)
        if outcome.failure is not None and outcome.failure.law == TERMINATION.id:
            break
        if began is not None:
            began(episode + 1)
    return report


def record_episode(factory: Factory, plan: Plan, episode: int, goal: str, watchdog: Watchdog) -> Trace | None:
    """Records the operations with which an episode met a goal, as a trace in which every law held."""
    scope: list[Scope] = []
    ops: list[Op] = []
    reached: list[int] = []

    class Recorded(model_of(plan.contract)):  # type: ignore[misc]
        def __init__(self, size: Scope, make: Factory) -> None:
            scope[:], ops[:], reached[:] = [size], [], []
            super().__init__(size, make)

        def step(self, op: Op) -> Any:
            answer = super().step(op)
            ops.append(op)
            if not reached and self.goals_met[goal]:
                reached.append(len(ops))
            return answer

    shard = episode // plan.shard_episodes
    driver = shard_driver(plan.driver)
    first = episode if driver.alone else plan.episodes(shard).start
    for _ in driver.play(shard_of(driver, Recorded, factory, plan.seed, range(first, episode + 1), watchdog)):
        pass
    if not scope:
        return None
    taken = tuple(ops[: reached[0]] if reached else ops)
    return Trace(
        plan.contract, scope[0], taken, target=plan.target, driver=plan.driver, seed=plan.seed, original=len(ops)
    )
