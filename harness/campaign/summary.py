"""A campaign as reports show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.campaign.ledger import Ledger
from kvlockstep.campaign.plan import Plan
from kvlockstep.core.trace import Trace
from kvlockstep.drivers.episode import missed_goals, not_evaluated
from kvlockstep.models.registry import model_of
from kvlockstep.runs.results import HOLDS, INCONCLUSIVE, VIOLATED, gaps, law_verdicts
from kvlockstep.targets import Target

YARDSTICK_STEPS = 1_000_000_000
YARDSTICK_HOURS = 6


@dataclass
class Campaign:
    """Results of a campaign so far, in all its runs; `run_steps` and `run_seconds` are of this run.

    `findings` maps the name of a trace to the trace and its file; the name says if it is not shrunk yet.
    """

    target: Target
    plan: Plan
    ledger: Ledger
    jobs: int = 1
    run_steps: int = 0
    run_seconds: float = 0.0
    findings: dict[str, tuple[Trace, Path]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def steps(self) -> int:
        return self.ledger.steps

    @property
    def episodes(self) -> int:
        return self.ledger.episodes

    @property
    def failures(self) -> int:
        return self.ledger.failures

    @property
    def seconds(self) -> float:
        return self.ledger.seconds

    @property
    def not_checked(self) -> dict[str, str]:
        return self.ledger.not_checked

    @property
    def lost_workers(self) -> list[str]:
        """The last ones."""
        return list(self.ledger.lost_texts)

    @property
    def missed(self) -> tuple[str, ...]:
        return missed_in(self.plan.contract, self.ledger)

    @property
    def not_evaluated(self) -> tuple[str, ...]:
        return not_evaluated_in(self.plan.contract, self.ledger)

    @property
    def gaps(self) -> list[str]:
        """Reasons why the campaign is inconclusive as long as it finds nothing."""
        return gaps(self.missed, self.not_evaluated)

    @property
    def verdict(self) -> str:
        return VIOLATED if self.findings else INCONCLUSIVE if self.gaps else HOLDS

    @property
    def laws(self) -> dict[str, str]:
        """The verdict on each law: held, not_evaluated, not_checked or violated."""
        violated = {trace.law for trace, _ in self.findings.values()}
        return law_verdicts(self.plan.contract, self.ledger.evaluated, self.not_checked, violated)

    @property
    def rate(self) -> float:
        """Steps a second in this run."""
        return self.run_steps / self.run_seconds if self.run_seconds else 0.0


def missed_in(contract: str, ledger: Ledger) -> tuple[str, ...]:
    """The goals that no episode met."""
    return missed_goals(model_of(contract), ledger.reach, ledger.unreachable)


def not_evaluated_in(contract: str, ledger: Ledger) -> tuple[str, ...]:
    """The laws that no episode evaluated, though the target exposes enough for them."""
    return not_evaluated(model_of(contract), ledger.evaluated, ledger.not_checked)


def unique(states: int) -> int | None:
    """None where no state was looked at."""
    return states or None


def yardstick(rate: float) -> str:
    """Says how many steps a rate gives in a night."""
    steps = rate * YARDSTICK_HOURS * 3600
    share = steps / YARDSTICK_STEPS
    return f"{steps:,.0f} steps in {YARDSTICK_HOURS} hours, {share:.0%} of a billion"


def status_of(plan: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The state of a campaign with this plan, as status.json holds it."""
    missed = missed_in(plan["contract"], ledger)
    unevaluated = not_evaluated_in(plan["contract"], ledger)
    violated = bool(ledger.findings or ledger.unshrunk)
    return {
        **plan,
        "verdict": VIOLATED if violated else INCONCLUSIVE if missed or unevaluated else HOLDS,
        "steps": ledger.steps,
        "seconds": round(ledger.seconds, 3),
        "steps_per_second": round(ledger.recent_rate()),
        "episodes": ledger.episodes,
        "shards": len(ledger.done),
        "unique": unique(ledger.states.count),
        "failures": ledger.failures,
        "findings": sorted(ledger.findings),
        "unshrunk": len(ledger.unshrunk),
        "corpus": sorted(ledger.corpus),
        "reach": dict(sorted(ledger.reach.items())),
        "missed": missed,
        "evaluated": dict(sorted(ledger.evaluated.items())),
        "not_evaluated": unevaluated,
        "unreachable": sorted(ledger.unreachable or ()),
        "not_checked": ledger.not_checked,
        "lost": ledger.lost,
        "lost_workers": list(ledger.lost_texts),
        "history": [[seconds, steps, unique(states)] for seconds, steps, states in ledger.history],
    }
