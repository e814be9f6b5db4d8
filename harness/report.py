"""Results of runs: verdicts, what became of each law, reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.drivers.episode import Outcome
from kvlockstep.models.registry import model_of
from kvlockstep.page import failure_page
from kvlockstep.trace import Trace

HOLDS, VIOLATED, INCONCLUSIVE, ERROR = "holds", "violated", "inconclusive", "error"
EXIT_CODES = {HOLDS: 0, VIOLATED: 1, INCONCLUSIVE: 3, ERROR: 4}
_SEVERITY = (HOLDS, INCONCLUSIVE, VIOLATED, ERROR)


def worst(verdicts: Iterable[str]) -> str:
    """The verdict of several runs together; no run at all is inconclusive."""
    return max(verdicts, key=_SEVERITY.index, default=INCONCLUSIVE)


@dataclass
class Run:
    """One driver on one target of one contract."""

    contract: str
    target: str
    driver: str
    verdict: str
    steps: int = 0
    states: int = 0
    seconds: float = 0.0
    laws: dict[str, str] = field(default_factory=dict)
    reach: dict[str, int] = field(default_factory=dict)
    trace: str | None = None
    note: str = ""
    failure: Trace | None = None
    cut: str = ""

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "failure"}


@dataclass
class TargetReport:
    """All runs on one target. `missed` are the reach goals that no driver reached."""

    contract: str
    target: str
    runs: list[Run] = field(default_factory=list)
    missed: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        verdict = worst(run.verdict for run in self.runs)
        return INCONCLUSIVE if verdict == HOLDS and self.missed else verdict

    @property
    def failures(self) -> list[Run]:
        return [run for run in self.runs if run.failure is not None]

    def reasons(self) -> list[str]:
        """Why an inconclusive check is so: what cut its runs off, and the goals that none reached."""
        cut = [run.cut for run in self.runs if run.cut]
        return cut + ([f"never reached {', '.join(self.missed)}"] if self.missed else [])


@dataclass
class Report:
    """What `check` answers."""

    targets: list[TargetReport] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return worst(target.verdict for target in self.targets)

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS

    @property
    def runs(self) -> list[Run]:
        return [run for target in self.targets for run in target.runs]

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "runs": [run.to_json() for run in self.runs],
            "notes": {f"{t.contract} {t.target}": t.notes for t in self.targets if t.notes},
            "missed": {f"{t.contract} {t.target}": list(t.missed) for t in self.targets if t.missed},
            "skipped": self.skipped,
        }

    def text(self) -> str:
        """The failure pages, or why the check is inconclusive, or one line that it holds."""
        pages = [failure_page(run.failure, run.trace) for run in self.runs if run.failure is not None]
        for target in self.targets:
            if target.verdict == INCONCLUSIVE:
                pages.append(f"{target.contract} on {target.target} - INCONCLUSIVE: {'; '.join(target.reasons())}")
        return "\n\n".join(pages) or f"{self.verdict}: {sum(run.steps for run in self.runs):,} steps"


def law_verdicts(contract: str, not_checked: Iterable[str], violated: Iterable[str]) -> dict[str, str]:
    """What became of each law of a contract: held, not_checked or violated."""
    laws = {law.id: "held" for law in model_of(contract).laws}
    laws.update(dict.fromkeys(not_checked, "not_checked"))
    laws.update(dict.fromkeys(violated, "violated"))
    return laws


def run_of(contract: str, target: str, outcome: Outcome, trace: Path | None = None) -> Run:
    """A driver's outcome as a run of a report."""
    failure = outcome.failure
    not_checked = outcome.not_checked if outcome.steps else [law.id for law in model_of(contract).laws]
    laws = law_verdicts(contract, not_checked, [failure.law] if failure is not None else [])
    note = ""
    if outcome.driver == "explore":
        note = outcome.cut or f"depth {outcome.depth}, {'exhausted' if outcome.exhausted else 'not exhausted'}"
    elif outcome.sampled:
        note = f"{outcome.novel / outcome.sampled:.0%} in new states"
    return Run(
        contract,
        target,
        outcome.driver,
        VIOLATED if failure is not None else INCONCLUSIVE if outcome.cut else HOLDS,
        outcome.steps,
        outcome.states,
        round(outcome.seconds, 3),
        laws,
        dict(sorted(outcome.reach.items())),
        str(trace) if trace is not None else None,
        note,
        failure,
        outcome.cut,
    )
