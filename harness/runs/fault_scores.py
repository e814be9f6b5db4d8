"""What `score` has found about each fault, each known-good target and each law, and whether that is good enough."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties.law import EVERYWHERE, Law
from kvlockstep.properties.overlaps import shadow_of
from kvlockstep.runs.results import HOLDS, VIOLATED, worst

# Of the shortest traces of a thorough score.
MEDIAN_LENGTH = 6
LONGEST = 12


@dataclass(frozen=True)
class Sighting:
    """One driver with one seed on one fault; `law` is None if it found nothing within its budget."""

    driver: str
    seed: int
    law: str | None
    steps: int
    seconds: float


@dataclass
class FaultScore:
    """The score of one fault. `laws` are those that see the shrunk trace: each one found without those before it."""

    id: str
    contract: str
    expected: str
    sightings: list[Sighting] = field(default_factory=list)
    trace: Trace | None = None
    laws: tuple[str, ...] = ()
    seconds: float = 0.0

    def caught_by(self, driver: str) -> Sighting | None:
        """The driver's sighting with the lowest seed that caught the fault."""
        return next((s for s in self.sightings if s.driver == driver and s.law), None)

    def caught_with(self, seed: int) -> bool:
        """Exploration knows no seed, so what it catches is caught with every one."""
        return any(s.law for s in self.sightings if s.seed == seed or s.driver == "explore")

    @property
    def seeds(self) -> list[int]:
        return sorted({s.seed for s in self.sightings})

    @property
    def caught(self) -> bool:
        return all(self.caught_with(seed) for seed in self.seeds)

    @property
    def by_luck(self) -> bool:
        return not self.caught and any(s.law for s in self.sightings)

    @property
    def first(self) -> Sighting | None:
        """The sighting that took the fewest steps."""
        return min((s for s in self.sightings if s.law), key=lambda s: s.steps, default=None)

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "id": self.id,
            "contract": self.contract,
            "caught": self.caught,
            "law": first and first.law,
            "driver": first and first.driver,
            "steps": first and first.steps,
            "trace_length": self.trace and len(self.trace.ops),
            "seconds": round(self.seconds, 3),
            "expected": self.expected,
            "laws": list(self.laws),
            "sightings": [asdict(s) for s in self.sightings],
        }


@dataclass(frozen=True)
class Clean:
    """A known-good target, with the verdict of the suite."""

    contract: str
    target: str
    verdict: str
    steps: int
    seconds: float
    law: str | None = None
    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class LawScore:
    """`first`: faults that this law reports; `sees`: faults that it would; `alone`: those that no other law sees.

    `company` are the laws that see everything that this one sees. The laws of every contract (agreement with the
    reference, errors, time) do not count as others. `reason` says why it need not be alone.
    """

    contract: str
    id: str
    first: int
    sees: int
    alone: tuple[str, ...]
    company: tuple[str, ...]
    reason: str | None = None


@dataclass
class Score:
    """The score. `whole`: of all faults, not only chosen ones. `thorough`: traces are as short as a check makes them.

    Only of a thorough score the lengths of the shortest traces count, and only of one that is both their median.
    """

    faults: list[FaultScore] = field(default_factory=list)
    clean: list[Clean] = field(default_factory=list)
    seconds: float = 0.0
    whole: bool = True
    thorough: bool = False

    @property
    def missed(self) -> list[FaultScore]:
        return [f for f in self.faults if not f.caught]

    @property
    def lengths(self) -> list[int]:
        return [len(f.trace.ops) for f in self.faults if f.trace is not None]

    @property
    def too_long(self) -> list[FaultScore]:
        return [f for f in self.faults if self.thorough and f.trace is not None and len(f.trace.ops) > LONGEST]

    @property
    def median_length(self) -> float:
        return median(self.lengths) if self.lengths else 0.0

    @property
    def blind(self) -> list[LawScore]:
        """The laws that see nothing, for no stated reason. Which law is alone hangs on the traces; see the tests."""
        return [law for law in self.laws() if not law.sees and law.reason is None] if self.whole else []

    @property
    def verdict(self) -> str:
        short = not (self.whole and self.thorough) or self.median_length <= MEDIAN_LENGTH
        wrong = self.missed or self.too_long or self.blind or not short
        return worst([VIOLATED if wrong else HOLDS, *(clean.verdict for clean in self.clean)])

    def laws(self) -> list[LawScore]:
        """The law side of the matrix law x fault."""
        contracts = [name for name in MODELS if any(f.contract == name for f in self.faults)]
        return [self._law(contract, law) for contract in contracts for law in model_of(contract).laws]

    def _law(self, contract: str, law: Law[Any]) -> LawScore:
        faults = [f for f in self.faults if f.contract == contract and law.id in f.laws]
        everywhere = {other.id for other in EVERYWHERE}
        others = [set(f.laws) - everywhere - {law.id} for f in faults]
        alone = tuple(f.id for f, other in zip(faults, others, strict=True) if not other)
        company = sorted(set.intersection(*others)) if others else ()
        first = sum(f.laws[0] == law.id for f in faults)
        shadow = None if alone else shadow_of(contract, law.id)
        return LawScore(contract, law.id, first, len(faults), alone, tuple(company), shadow and shadow.why)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "caught": len(self.faults) - len(self.missed),
            "total": len(self.faults),
            "median_trace_length": self.median_length,
            "faults": [f.to_json() for f in self.faults],
            "laws": [asdict(law) for law in self.laws()],
            "clean": [asdict(clean) for clean in self.clean],
            "seconds": round(self.seconds, 1),
        }
