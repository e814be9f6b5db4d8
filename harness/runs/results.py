"""The results of drivers, targets and whole checks: verdicts, in all and for each law, and goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import Outcome
from kvlockstep.models.registry import model_of
from kvlockstep.reference.traits import traits_of

HOLDS, VIOLATED, INCONCLUSIVE, ERROR = "holds", "violated", "inconclusive", "error"
EXIT_CODES = {HOLDS: 0, VIOLATED: 1, INCONCLUSIVE: 3, ERROR: 4}
# An interrupted run has no verdict.
INTERRUPTED = 130
_SEVERITY = (HOLDS, INCONCLUSIVE, VIOLATED, ERROR)


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of several runs together; no run at all is inconclusive."""
    return max(verdicts, key=_SEVERITY.index, default=INCONCLUSIVE)


@dataclass
class DriverResult:
    """One driver on one target of one contract. `evaluated` counts the evaluations of each law."""

    contract: str
    target: str
    driver: str
    verdict: str
    steps: int = 0
    states: int = 0
    seconds: float = 0.0
    laws: dict[str, str] = field(default_factory=dict)
    evaluated: dict[str, int] = field(default_factory=dict)
    reach: dict[str, int] = field(default_factory=dict)
    trace: str | None = None
    note: str = ""
    failure: Trace | None = None
    cut: str = ""

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "failure"}


@dataclass
class TargetResult:
    """All runs on one target.

    `missed` are the goals that no driver met, `not_evaluated` the laws that no driver evaluated, though the target
    exposes enough for them. Either makes the check inconclusive.
    """

    contract: str
    target: str
    runs: list[DriverResult] = field(default_factory=list)
    missed: tuple[str, ...] = ()
    not_evaluated: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        verdict = worst(run.verdict for run in self.runs)
        return INCONCLUSIVE if verdict == HOLDS and self.gaps else verdict

    @property
    def laws(self) -> dict[str, str]:
        """The verdict of each law in all runs together."""
        violated = {run.failure.law for run in self.runs if run.failure is not None}
        return law_verdicts(self.contract, self.evaluated, self.not_checked, violated)

    @property
    def evaluated(self) -> Counter[str]:
        """The evaluations of each law in all runs together."""
        evaluated: Counter[str] = Counter()
        for run in self.runs:
            evaluated.update(run.evaluated)
        return evaluated

    @property
    def reached(self) -> Counter[str]:
        """Counts how often each goal was met in all runs together."""
        reached: Counter[str] = Counter()
        for run in self.runs:
            reached.update(run.reach)
        return reached

    @property
    def not_declared(self) -> dict[str, list[str]]:
        """The traits that say no because the target does not declare them, each with the goals that were not tried."""
        traits = self.facts.get("traits")
        if traits is None:
            return {}
        known = traits_of(type(traits))
        found: dict[str, list[str]] = {}
        for goal in model_of(self.contract).goals:
            trait = known.get(goal.when or "")
            if trait is not None and not trait.default and not getattr(traits, trait.name):
                found.setdefault(trait.name, []).append(goal.id)
        return found

    @property
    def gaps(self) -> list[str]:
        """Reasons why the check is inconclusive, in a few words each."""
        return [*(run.cut for run in self.runs if run.cut), *gaps(self.missed, self.not_evaluated)]

    @property
    def failures(self) -> list[DriverResult]:
        return [run for run in self.runs if run.failure is not None]


@dataclass
class CheckResult:
    """The result of a whole check."""

    targets: list[TargetResult] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return worst(target.verdict for target in self.targets)

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS

    @property
    def runs(self) -> list[DriverResult]:
        return [run for target in self.targets for run in target.runs]

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "runs": [run.to_json() for run in self.runs],
            "notes": self._by_target("notes"),
            "missed": self._by_target("missed"),
            "not_evaluated": self._by_target("not_evaluated"),
            "not_checked": self._by_target("not_checked"),
            "not_declared": self._by_target("not_declared"),
            "skipped": self.skipped,
        }

    def _by_target(self, name: str) -> dict[str, Any]:
        """The attribute of this name of each target that has something there."""
        return {f"{t.contract} {t.target}": value for t in self.targets if (value := getattr(t, name))}

    def headline(self) -> str:
        """What is wrong first, in a line that begins with the law, since lists cut it off; or the verdict."""
        for run in self.runs:
            if run.failure is not None:
                return f"{run.failure.law}: {run.failure.message}".partition("\n")[0]
        reasons = [gap for target in self.targets for gap in target.gaps]
        return ": ".join([self.verdict.upper(), *reasons[:1]])

    def text(self) -> str:
        """The failure pages, or why the check is inconclusive, or one line that it holds."""
        pages = [failure_page(run.failure, run.trace) for run in self.runs if run.failure is not None]
        for target in self.targets:
            if target.verdict == INCONCLUSIVE:
                pages.append(f"{target.contract} on {target.target} - INCONCLUSIVE: {'; '.join(target.gaps)}")
        return "\n\n".join(pages) or f"{self.verdict}: {sum(run.steps for run in self.runs):,} steps"


def gaps(missed: Sequence[str], not_evaluated: Sequence[str]) -> list[str]:
    """Reasons why a run that found nothing is inconclusive, in a few words each."""
    reasons = ("missed goals", missed), ("never evaluated", not_evaluated)
    return [f"{what}: {', '.join(names)}" for what, names in reasons if names]


def law_verdicts(
    contract: str, evaluated: Mapping[str, int], not_checked: Container[str], violated: Container[str]
) -> dict[str, str]:
    """The verdict of each law of a contract: violated, not_checked, held or not_evaluated."""

    def verdict(law: str) -> str:
        if law in violated:
            return "violated"
        if law in not_checked:
            return "not_checked"
        return "held" if evaluated.get(law) else "not_evaluated"

    return {law.id: verdict(law.id) for law in model_of(contract).laws_in_play(evaluated)}


def result_of(contract: str, target: str, outcome: Outcome, trace: Path | None = None) -> DriverResult:
    """The outcome of a driver as it stands in the results."""
    failure = outcome.failure
    violated = (failure.law,) if failure is not None else ()
    note = ""
    if outcome.driver == "explore":
        note = outcome.cut or f"depth {outcome.depth}, {'exhausted' if outcome.exhausted else 'not exhausted'}"
    elif outcome.sampled:
        note = f"{outcome.novel / outcome.sampled:.0%} in new states"
    return DriverResult(
        contract,
        target,
        outcome.driver,
        VIOLATED if failure is not None else INCONCLUSIVE if outcome.cut else HOLDS,
        outcome.steps,
        outcome.states,
        round(outcome.seconds, 3),
        law_verdicts(contract, outcome.evaluated, outcome.not_checked, violated),
        dict(sorted((+outcome.evaluated).items())),
        dict(sorted(outcome.reach.items())),
        str(trace) if trace is not None else None,
        note,
        failure,
        outcome.cut,
    )
