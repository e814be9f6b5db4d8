"""One episode of given operations, and the results that every driver has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.models.core.model import Divergence, Factory, Model, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Unplayable
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.properties.law import EVERYWHERE

SAMPLED_STEPS = 5_000
# So many of the operations that did not apply are named.
NAMED = 5


@dataclass
class Outcome:
    """The results of one driver. `states` counts distinct abstract states where the driver keeps them, else episodes.

    Of the first `sampled` steps (5,000 at most), `novel` ended in a state that no earlier one had ended in. `unsteady`
    counts how often the target was seen to do something else at the same operations, which is no violation by itself.
    `evaluated` counts how often each law was evaluated.
    `cut` is a sentence if a limit of time ended the run before its budget of work did, which makes it inconclusive.
    """

    driver: str
    steps: int = 0
    states: int = 0
    depth: int = 0
    seconds: float = 0.0
    exhausted: bool | None = None
    reach: Counter[str] = field(default_factory=Counter)
    evaluated: Counter[str] = field(default_factory=Counter)
    not_checked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    failure: Trace | None = None
    unsteady: int = 0
    cut: str = ""
    sampled: int = 0
    seen: set[int] = field(default_factory=set, repr=False)

    @property
    def novel(self) -> int:
        return len(self.seen)

    def sample(self, model: Model[Any]) -> None:
        """Notes the state of the model, until enough steps are sampled."""
        if self.sampled < SAMPLED_STEPS:
            self.sampled += 1
            self.seen.add(hash((model.scope, model.sketch())))

    def absorb(self, model: Model[Any]) -> None:
        """Adds the goals, the evaluations and the laws that are not checked of one episode."""
        self.reach.update(model.goals_met)
        self.evaluated.update(model.evaluated)
        self.not_checked = model.not_checked()
        self.unreachable = common(self.unreachable, model.unreachable())
        self.facts = self.facts or model.describe()


def missed_goals(model_type: type[Model[Any]], reach: Counter[str], unreachable: set[str] | None) -> tuple[str, ...]:
    """The goals of a contract that were not met, and could have been."""
    return tuple(g.id for g in model_type.goals if not reach[g.id] and g.id not in (unreachable or ()))


def not_evaluated(
    model_type: type[Model[Any]], evaluated: Counter[str], not_checked: Container[str]
) -> tuple[str, ...]:
    """The laws of a contract that were never evaluated, though the target exposes enough for them."""
    laws = model_type.laws_in_play(evaluated)
    return tuple(law.id for law in laws if not evaluated[law.id] and law.id not in not_checked)


def common(a: set[str] | None, b: set[str] | None) -> set[str] | None:
    """Goals that neither run can meet; None stands for a run that has not happened."""
    return b if a is None else a if b is None else a & b


@dataclass(frozen=True)
class Replayed:
    """The results of given operations.

    `skipped` are those that were not legal at their place, each with its number from 0. `evaluated` counts the
    evaluations of each law. `answers` are those of the operations that applied.
    """

    failure: Trace | None
    skipped: tuple[tuple[int, Op], ...] = ()
    evaluated: Counter[str] = field(default_factory=Counter)
    answers: tuple[str, ...] = ()

    def judged(self, law: str) -> bool:
        """Tells whether a law was evaluated; those of every contract are, at each call."""
        return law in {everywhere.id for everywhere in EVERYWHERE} or self.evaluated[law] > 0


def play_ops(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Iterable[Op], watchdog: Watchdog
) -> Replayed:
    """Plays the operations that are legal where they stand, until a law is violated.

    Raises Unplayable, with the number of the operation, for one that not even the reference can execute.
    """
    done: list[Op] = []
    answers: list[str] = []
    skipped: list[tuple[int, Op]] = []
    model: Model[Any] | None = None
    failure = None
    try:
        watchdog.beat += 1
        model = model_type(scope, factory)
        for number, op in enumerate(ops):
            watchdog.beat += 1
            done.append(op)
            try:
                answers.append(answer_text(model.step(op)))
            except NotEnabled:
                skipped.append((number, done.pop()))
            except Unplayable as error:
                raise Unplayable(error.reason, number) from error
    except Divergence as divergence:
        failure = failed(model_type, scope, done, answers, divergence)
    evaluated = model.evaluated if model is not None else Counter[str]()
    return Replayed(failure, tuple(skipped), evaluated, tuple(answers))


def unapplied(trace: Trace, replayed: Replayed) -> str:
    """Reason why a trace that found nothing proves nothing about the target, in words; "" if it proves something.

    It proves something if every operation applied, and the law that the trace names was evaluated or the target now
    answers differently: a false hit that is gone leaves its law nothing to judge.
    """
    if replayed.skipped:
        named = [f"{op.name} (operation {number + 1})" for number, op in replayed.skipped]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        return f"{len(named)} of {len(trace.ops)} operations did not apply: {', '.join(named[:NAMED])}{more}"
    if trace.law and not replayed.judged(trace.law) and not changed_answer(trace, replayed):
        return f"the law {trace.law} was never evaluated"
    return ""


def changed_answer(trace: Trace, replayed: Replayed) -> str:
    """The first answer that differs from the recorded one, in words; "" if all are alike."""
    for number, (op, before, now) in enumerate(zip(trace.ops, trace.answers, replayed.answers, strict=False), 1):
        if before and before != now:
            return f"{op.name} (operation {number}) returned {before!r} and now returns {now!r}"
    return ""


def run_ops(
    model_type: type[Model[Any]], factory: Factory, scope: Scope, ops: Iterable[Op], watchdog: Watchdog
) -> Trace | None:
    """The failing trace that `play_ops` comes to, or None if all laws held."""
    return play_ops(model_type, factory, scope, ops, watchdog).failure


def failed(
    model_type: type[Model[Any]], scope: Scope, ops: Sequence[Op], answers: Sequence[str], divergence: Divergence
) -> Trace:
    """The trace of a divergence, the failing operation last, with its answer so far."""
    known = [*answers, divergence.answer] if divergence.answer and len(answers) == len(ops) - 1 else answers
    return Trace(
        model_type.contract,
        scope,
        tuple(ops),
        tuple(known),
        avails=divergence.avails,
        printed=divergence.printed,
        law=divergence.law,
        message=divergence.message,
        details=divergence.details,
        original=len(ops),
    )


def answer_text(answer: Any) -> str:
    """A target's answer as shown behind the arrow of a trace line; "" for a plain acknowledgement."""
    text = "" if answer is None else str(answer)
    return "" if text == "done" else safe_text(text)
