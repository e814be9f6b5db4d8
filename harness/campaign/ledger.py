"""Ledger of a campaign: all that it knows. Only records of the journal change it, so reading them restores it.

Its size is bounded: it keeps sums, the shards done as ranges, and the first few failures of each kind.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.campaign.distinct import Distinct
from kvlockstep.campaign.ranges import Ranges
from kvlockstep.campaign.shard import ShardReport
from kvlockstep.campaign.tasks import RECORD, SHARD, SHRINK, Task
from kvlockstep.core.trace import Trace, parse_trace, trace_text
from kvlockstep.drivers.episode import common

# Of each kind of failure so many are shrunk; the others are counted.
FINDINGS_PER_KIND = 4
# Shards are begun at most so far ahead of the first that is not done.
WINDOW = 256
LOST_SHOWN = 20
# Where an episode's number stands, for a failure that a known example was.
KNOWN_EXAMPLE = -1
HISTORY_POINTS = 512
RECENT = 60.0

Record = dict[str, Any]


@dataclass
class Failure:
    """A failing episode to shrink."""

    kind: str
    episode: int
    trace: Trace

    def to_json(self) -> list[Any]:
        return [self.kind, self.episode, trace_text(self.trace)]

    @classmethod
    def from_json(cls, values: list[Any]) -> Failure:
        return cls(values[0], values[1], parse_trace(values[2], "journal"))


@dataclass
class Ledger:
    """State of a campaign.

    `findings`: file name to the episode that it was shrunk from, and its kind. `ahead`: failures in shards that
    have earlier shards not done yet. `corpus`: goal to (steps, episode) of its trace. `shortest`: goal to those that
    the trace should have. `states`: those in the sampled episodes. `reused`: known examples were played first, if the
    driver has any. `history`: seconds, steps and states as time went by.
    """

    done: Ranges = field(default_factory=Ranges)
    steps: int = 0
    episodes: int = 0
    failures: int = 0
    seconds: float = 0.0
    reach: Counter[str] = field(default_factory=Counter)
    evaluated: Counter[str] = field(default_factory=Counter)
    states: Distinct = field(default_factory=Distinct)
    not_checked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] | None = None
    kinds: Counter[str] = field(default_factory=Counter)
    ahead: dict[int, list[Failure]] = field(default_factory=dict)
    to_shrink: list[Failure] = field(default_factory=list)
    findings: dict[str, tuple[int, str]] = field(default_factory=dict)
    shortest: dict[str, tuple[int, int]] = field(default_factory=dict)
    corpus: dict[str, tuple[int, int]] = field(default_factory=dict)
    reused: bool = False
    lost: int = 0
    lost_texts: deque[str] = field(default_factory=lambda: deque(maxlen=LOST_SHOWN))
    history: list[tuple[float, int, int]] = field(default_factory=list)
    _frontier: int = 0

    def apply(self, record: Record) -> None:
        """Applies one record of the journal."""
        match record["record"]:
            case "shard":
                self._shard(ShardReport.from_json(record["report"]))
            case "finding":
                self.to_shrink = [f for f in self.to_shrink if f.episode != record["episode"]]
                if self.wins(record["file"], record["episode"]):
                    self.findings[record["file"]] = record["episode"], record["kind"]
            case "fixed":
                _, kind = self.findings.pop(record["file"])
                self.kinds.pop(kind, None)
            case "reused":
                self.reused = True
                if record["failure"] is not None:
                    failure = Failure.from_json(record["failure"])
                    self.kinds[failure.kind] += 1
                    self.to_shrink.append(failure)
            case "corpus":
                self.corpus[record["goal"]] = (record["steps"], record["episode"])
            case "lost":
                self._lose(record["text"])
            case "time":
                self.seconds += record["seconds"]
                self._remember()

    @property
    def unshrunk(self) -> list[Failure]:
        """Failures to shrink, certainly or perhaps."""
        return self.to_shrink + [failure for failures in self.ahead.values() for failure in failures]

    def tasks(self) -> list[Task]:
        """Tasks to do beside shards: failures to shrink, in order, and the corpus."""
        shrink = [Task(SHRINK, failure.episode, failure.trace) for failure in self.to_shrink]
        wanted = sorted((episode, goal) for goal, (_, episode) in self.shortest.items() if self._outdated(goal))
        return shrink + [Task(RECORD, episode, goal=goal) for episode, goal in wanted]

    def next_shard(self, begun: set[int]) -> Task | None:
        """The first shard that is neither done nor begun, unless it is too far ahead."""
        shard = self.done.first_missing(self._frontier)
        while shard in begun:
            shard = self.done.first_missing(shard + 1)
        return Task(SHARD, shard) if shard < self._frontier + WINDOW else None

    def recent_rate(self) -> float:
        """Steps a second over the last minute or so."""
        start = next((point for point in reversed(self.history) if self.seconds - point[0] >= RECENT), (0.0, 0, 0))
        return (self.steps - start[1]) / (self.seconds - start[0]) if self.seconds > start[0] else 0.0

    def wins(self, name: str, episode: int) -> bool:
        """True if a finding of this name from this episode replaces the one there is."""
        return name not in self.findings or episode <= self.findings[name][0]

    def wanted(self, kind: str) -> bool:
        """True if more failures of this kind are to be shrunk."""
        return self.kinds[kind] < FINDINGS_PER_KIND

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "evaluated": dict(self.evaluated),
            "done": self.done.pairs(),
            "states": [self.states.level, sorted(self.states.kept)],
            "unreachable": None if self.unreachable is None else sorted(self.unreachable),
            "ahead": {shard: [f.to_json() for f in failures] for shard, failures in self.ahead.items()},
            "to_shrink": [f.to_json() for f in self.to_shrink],
            "lost_texts": list(self.lost_texts),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Ledger:
        ledger = cls(**{name: values[name] for name in PLAIN})
        ledger.done = Ranges(values["done"])
        ledger._frontier = ledger.done.first_missing()
        level, kept = values["states"]
        ledger.states = Distinct(kept, level)
        ledger.reach, ledger.kinds = Counter(values["reach"]), Counter(values["kinds"])
        ledger.evaluated = Counter(values.get("evaluated", {}))
        ledger.unreachable = None if values["unreachable"] is None else set(values["unreachable"])
        ledger.ahead = {int(s): [Failure.from_json(f) for f in failures] for s, failures in values["ahead"].items()}
        ledger.to_shrink = [Failure.from_json(f) for f in values["to_shrink"]]
        ledger.lost_texts.extend(values["lost_texts"])
        ledger.shortest = {goal: (steps, episode) for goal, (steps, episode) in values["shortest"].items()}
        ledger.corpus = {goal: (steps, episode) for goal, (steps, episode) in values["corpus"].items()}
        ledger.findings = {name: (episode, kind) for name, (episode, kind) in values["findings"].items()}
        ledger.history = [(seconds, steps, states) for seconds, steps, states in values["history"]]
        return ledger

    def _shard(self, report: ShardReport) -> None:
        self.done.add(report.shard)
        self.steps += report.steps
        self.episodes += report.episodes
        self.failures += report.failures
        self.reach.update(report.reach)
        self.evaluated.update(report.evaluated)
        self.states.add(report.states)
        self.not_checked = report.not_checked or self.not_checked
        self.unreachable = common(self.unreachable, report.unreachable)
        for goal, found in report.shortest.items():
            self.shortest[goal] = min(found, self.shortest.get(goal, found))
        for text in report.lost:
            self._lose(text)
        failures = [
            Failure(kind, episode, trace)
            for kind, (episode, trace) in sorted(report.first.items())
            if self.wanted(kind)
        ]
        if failures:
            self.ahead[report.shard] = failures
        self._advance()

    def _advance(self) -> None:
        """Chooses what is shrunk in the order of shards, so that the choice does not depend on who was faster."""
        frontier = self.done.first_missing(self._frontier)
        for shard in sorted(self.ahead):
            if shard >= frontier:
                break
            for failure in self.ahead.pop(shard):
                if self.wanted(failure.kind):
                    self.kinds[failure.kind] += 1
                    self.to_shrink.append(failure)
        self._frontier = frontier

    def _outdated(self, goal: str) -> bool:
        return self.corpus.get(goal) != self.shortest[goal]

    def _lose(self, text: str) -> None:
        self.lost += 1
        self.lost_texts.append(text)

    def _remember(self) -> None:
        last = self.history[-1] if self.history else (-1.0, -1, 0)
        if self.steps == last[1] or self.seconds - last[0] < self.seconds / HISTORY_POINTS:
            return
        self.history.append((round(self.seconds, 2), self.steps, self.states.count))
        if len(self.history) > HISTORY_POINTS:
            self.history = self.history[::2]


PLAIN = (
    "steps",
    "episodes",
    "failures",
    "seconds",
    "reach",
    "not_checked",
    "kinds",
    "findings",
    "shortest",
    "corpus",
    "reused",
    "lost",
    "history",
)


def line_of(record: Record) -> str:
    """A record as a line of the journal."""
    return json.dumps(record, separators=(",", ":"))
