"""Plays a trace again and inspects the target before and after every step.

Each state is seen on a new target that was driven and not inspected up to there, since a question can change the next
answer of a faulty manager. All of it happens in a child process, so a target that hangs or dies ends only that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.core.trace import Trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import answer_text
from kvlockstep.models.core.lockstep import LockstepModel, fields, show
from kvlockstep.models.core.model import Divergence, Model
from kvlockstep.models.core.op import NotEnabled, Op
from kvlockstep.models.core.picture import NOTHING, Picture, Table, text
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import Law, Refused
from kvlockstep.reference.errors import ContractError
from kvlockstep.targets import Target

Outcomes = dict[int, Any]

REPLAYED_STEPS = 40_000
LONGEST_VALUE = 600
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """Two values that should be equal: the observed one and the right one."""

    what: str
    seen: str
    wanted: str


@dataclass
class StepView:
    """One step: the operation, the target's answer, and the picture and available slots afterwards."""

    op: str
    answer: str
    picture: Picture | None = None
    avail: int | None = None


@dataclass
class Observed:
    """A trace as it went this time. `law` is empty if every law held; `hidden` steps at the start have no picture."""

    start: Picture = NOTHING
    steps: list[StepView] = field(default_factory=list)
    law: str = ""
    message: str = ""
    details: tuple[str, ...] = ()
    differences: list[Difference] = field(default_factory=list)
    hidden: int = 0


def observe(target: Target, trace: Trace, step_seconds: float = 5.0) -> Observed:
    """Plays the trace on the target and returns everything that can be seen of it."""
    try:
        return in_child(lambda watchdog: _observe(target, trace, watchdog), step_seconds)
    except ChildLost as lost:
        done = _without_last(target, trace, step_seconds)
        done.law, done.message, done.details = trace.law, trace.message, (lost.reason,)
        return done


def _without_last(target: Target, trace: Trace, step_seconds: float) -> Observed:
    before = trace.but(ops=trace.ops[:-1], answers=trace.answers[:-1], law="")
    try:
        done = in_child(lambda watchdog: _observe(target, before, watchdog), step_seconds) if before.ops else Observed()
    except ChildLost:
        done = Observed(steps=[StepView(str(op), "") for op in before.ops])
    done.steps.append(StepView(str(trace.ops[-1]) if trace.ops else "", ""))
    return done


def _observe(target: Target, trace: Trace, watchdog: Watchdog) -> Observed:
    model_type, ops = model_of(trace.contract), trace.ops
    observed = Observed()
    law = model_type.law(trace.law)
    model: Model[Any] | None = None
    outcomes: Outcomes = {}
    seen_by_law: list[tuple[Any, ...]] = []
    try:
        watchdog.beat += 1
        model = (model_type if law is None else _watching(model_type, law, seen_by_law))(trace.scope, target.factory)
        outcomes = _listen(model)
        for op in ops:
            observed.steps.append(StepView(str(op), "not possible here"))
            done = len(model.avails)
            observed.steps[-1].answer = _step(model, op, watchdog)
            observed.steps[-1].avail = next(iter(model.avails[done:]), None)
    except Divergence as divergence:
        if observed.steps:
            observed.steps[-1].answer = answer_text(divergence.answer) or _last_answer(model, outcomes)
            observed.steps[-1].avail = divergence.avails[-1] if divergence.avails else None
        observed.law, observed.message, observed.details = divergence.law, divergence.message, divergence.details
        if model is None:
            return observed
        observed.differences = _differences_of(model, divergence, outcomes, law, seen_by_law)
    shown = min(len(observed.steps), max(20, REPLAYED_STEPS // max(1, len(ops))))
    observed.hidden = len(observed.steps) - shown
    for number in range(observed.hidden, len(observed.steps) + 1):
        picture = _state_after(model_type, target, trace, number, watchdog)
        if number:
            observed.steps[number - 1].picture = picture
        if number == observed.hidden:
            observed.start = picture
    return observed


def _step(model: Model[Any], op: Op, watchdog: Watchdog) -> str:
    watchdog.beat += 1
    try:
        return answer_text(model.step(op))
    except NotEnabled:
        return "not possible here"


def _state_after(
    model_type: type[Model[Any]], target: Target, trace: Trace, number: int, watchdog: Watchdog
) -> Picture:
    try:
        watchdog.beat += 1
        model = model_type(trace.scope, target.factory)
        for op in trace.ops[:number]:
            _step(model, op, watchdog)
    except Divergence:
        if number < len(trace.ops):
            return NOTHING
    watchdog.beat += 1
    return picture_of(model)


def picture_of(model: Model[Any]) -> Picture:
    """The state of the model's target now. A target that cannot be inspected gives a picture that says so."""
    try:
        return model.picture()
    except (Exception, Divergence) as error:
        row = (type(error).__name__, text(error))
        return NOTHING._replace(tables=(Table("the target cannot be inspected", ("error", "message"), (row,)),))


def _listen(model: Model[Any]) -> Outcomes:
    """Keeps the last outcome of the reference and of the target, by the id of the system."""
    outcomes: Outcomes = {}
    if isinstance(model, LockstepModel):
        perform = model.perform

        def performed(system: Any, op: Op) -> Any:
            try:
                outcomes[id(system)] = None
                outcomes[id(system)] = perform(system, op)
            except ContractError as error:
                outcomes[id(system)] = Refused(type(error).__name__)
                raise
            return outcomes[id(system)]

        model.perform = performed  # type: ignore[method-assign]
    return outcomes


def _last_answer(model: Model[Any] | None, outcomes: Outcomes) -> str:
    if isinstance(model, LockstepModel) and id(model.target) in outcomes:
        return answer_text(outcomes[id(model.target)])
    return ""


def _watching(model_type: type[Model[Any]], law: Law[Any], violations: list[tuple[Any, ...]]) -> type[Model[Any]]:
    """Returns the model with a law that keeps its arguments in `violations` when it is violated."""

    def check(*observed: Any) -> str | None:
        wrong: str | None = law.check(*observed)
        if wrong is not None:
            violations.append(observed)
        return wrong

    return model_type.judging_by(replace(law, check=check))


def _differences_of(
    model: Model[Any],
    divergence: Divergence,
    outcomes: Outcomes,
    law: Law[Any] | None,
    violations: Sequence[tuple[Any, ...]],
) -> list[Difference]:
    if isinstance(model, LockstepModel):
        return _against_reference(model, outcomes)
    if law is None or law.id != divergence.law or not violations:
        return []
    names = list(inspect.signature(law.check).parameters)
    return differences_of_law(law.id, dict(zip(names, violations[-1], strict=False)))


def _against_reference(model: LockstepModel[Any], outcomes: Outcomes) -> list[Difference]:
    want, got = outcomes.get(id(model.reference)), outcomes.get(id(model.target))
    differences = [] if want == got else [Difference("answer", _short(show(got)), _short(show(want)))]
    try:
        pairs = list(fields(model.observe(model.reference), model.observe(model.target)))
    except Exception as error:
        return [*differences, Difference("a look at it afterwards", f"{type(error).__name__}: {error}", "it answers")]
    return differences + [difference for name, w, s in pairs for difference in _differences(name, w, s)]


def _differences(name: str, want: Any, seen: Any) -> Iterator[Difference]:
    """Differences of two values, part by part if they have named parts."""
    if want == seen:
        return
    if isinstance(want, Mapping) and isinstance(seen, Mapping):
        for key in [*want, *(key for key in seen if key not in want)]:
            yield from _differences(f"{name} {show(key)}", want.get(key, ABSENT), seen.get(key, ABSENT))
    elif hasattr(want, "_fields") and type(want) is type(seen):
        for part in want._fields:
            yield from _differences(f"{name}, {part}", getattr(want, part), getattr(seen, part))
    else:
        yield Difference(name, _short(_plain(seen)), _short(_plain(want)))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else show(value)


def differences_of_law(law: str, observed: dict[str, Any]) -> list[Difference]:
    """The values that a law of kv_manager found different; for a law without a table of its own, its arguments."""
    if "cell" in observed:
        cell = observed["cell"]
        return [Difference(f"position {cell.position}, slot {cell.slot}", cell.got, cell.want)]
    try:
        what, seen, wanted = _COMPARED[law](observed)
    except KeyError:
        return [Difference(name, _short(_told(value)), "") for name, value in observed.items()]
    return [Difference(what, _short(seen), _short(wanted))]


def _told(value: Any) -> str:
    """A value in words as far as it has named parts, as the state of a pool has."""
    if hasattr(value, "_asdict"):
        return ", ".join(f"{name} {_told(part)}" for name, part in value._asdict().items())
    if isinstance(value, frozenset | set):
        return str(sorted(value, key=str))
    return str(value)


Compared = Callable[[dict[str, Any]], tuple[str, Any, Any]]
_COMPARED: dict[str, Compared] = {
    "no_aliasing": lambda o: (f"slot {o['slot']}", " and ".join(o["writers"]), "one of them"),
    "hit_bounds": lambda o: ("cached tokens", o["cached"], f"0 to {o['known'] - 1}"),
    "eviction_safety": lambda o: (
        "free slots",
        sorted(s for s in o["free"] if s // o["block_size"] in o["held"]),
        f"none of blocks {sorted(o['held'])}, which are held",
    ),
    "no_double_free": lambda o: ("free slots", sorted(o["free"]), sorted(set(o["free"]))),
    "accounting": lambda o: ("avail + held", f"{o['avail']} + {o['held']} = {o['avail'] + o['held']}", o["total"]),
    "leak_freedom": lambda o: ("avail with no slot held", o["avail"], o["total"]),
    "conservation": lambda o: (
        ("lowest block named", o["lowest"], "0 or more")
        if o.get("lowest", 0) < 0
        else ("blocks named so far", len(o["blocks"]), f"at most {o['total'] // o['block_size']}")
    ),
    "free_count": lambda o: ("free_now", o["free_now"], f"0 to {o['avail'] - len(o['hit']) * o['block_size']}"),
    "eviction_complete": lambda o: ("free_now after evict_all", o["free_now"], o["total"] - o["held"]),
    "reset_complete": lambda o: (
        "avail, free_now after reset",
        f"{o['avail']}, {o['free_now']}",
        f"{o['total']}, {o['total']}",
    ),
    "admission_honesty": lambda o: (
        o["what"],
        "refused",
        f"accepted: {o['needed']} blocks at most, {o['room']} held by no live request",
    ),
    "coverage": lambda o: (f"slots {o.get('when', 'at launch')}", o["allocated"], f"at least {o['needed']}"),
    "table_limit": lambda o: (f"blocks in the table of {o['rid']}", o["blocks"], f"at most {o['most']}"),
    "atomicity": lambda o: (f"{o['of']} around {o['what']} that was refused", o["after"], o["before"]),
    "purity": lambda o: (f"{o['what']}, asked again", o["second"], o["first"]),
}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
