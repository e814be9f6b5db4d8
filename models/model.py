"""A model: the commands of one contract, and one episode of them on a target under its laws."""

from __future__ import annotations

import itertools
import signal
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from kvlockstep.models.op import Command, Op, Unplayable
from kvlockstep.models.safe_text import safe_text
from kvlockstep.properties.law import (
    AGREEMENT,
    ERROR_CONTRACT,
    EVERYWHERE,
    TERMINATION,
    Law,
    LawError,
    Refused,
    Step,
    law_error,
)
from kvlockstep.reference.contracts import ContractError

Factory = Callable[..., Any]

TRACEBACK_LINES = 12
# What Python says of arguments that nobody thought of.
ARGUMENT_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError, RecursionError)


class StepTimeout(BaseException):
    """Raised by a watchdog inside a call that does not return; a BaseException so that no target swallows it."""


class Divergence(AssertionError):
    """A law does not hold. `law` is its id; `details` are further lines for the failure page.

    `answer` is what the failing operation had answered, `avails` what was available after each operation, that one
    included, as far as somebody asked.
    """

    answer = ""
    avails: tuple[int | None, ...] = ()

    def __init__(self, law: str, message: str, details: Sequence[str] = ()) -> None:
        self.law = law
        self.message = safe_text(message)
        self.details = tuple(map(safe_text, details))
        super().__init__(f"{law}: {self.message}")


@dataclass(frozen=True)
class Scope:
    """The size of an episode; subclasses name the parameters. Stands in the header of a trace."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """What a failure page says of it."""
        return self.to_json()

    @property
    def stretch(self) -> int:
        """How many times as long as others random episodes in this scope are."""
        return 1

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


@dataclass(frozen=True)
class Goal:
    """Something that must happen at least once before a run says anything. `when` names the trait it depends on."""

    id: str
    statement: str
    when: str | None = None


S = TypeVar("S", bound=Scope)


class Model(ABC, Generic[S]):
    """One episode, made by `Model(scope, factory)`: a driver proposes through `commands` and executes with `step`.

    A subclass names its contract, laws, goals, and the scopes that each driver runs: `scopes` for random and
    Hypothesis episodes, `small_scopes` for exhaustive exploration.
    """

    contract: ClassVar[str]
    laws: ClassVar[tuple[Law[Any], ...]]
    goals: ClassVar[tuple[Goal, ...]]
    scope_type: ClassVar[type[Scope]]
    scopes: ClassVar[tuple[Scope, ...]]
    small_scopes: ClassVar[tuple[Scope, ...]]
    commands: ClassVar[tuple[Command, ...]] = ()
    command_table: ClassVar[tuple[Command, ...]] = ()
    own_laws: ClassVar[tuple[Law[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        own = (v.command for v in vars(cls).values() if hasattr(v, "command"))
        cls.commands = tuple({c.name: c for c in itertools.chain(cls.commands, own)}.values())
        cls.command_table = tuple(c for c in cls.commands for _ in range(c.weight))
        cls.own_laws = tuple(law for law in getattr(cls, "laws", ()) if law not in EVERYWHERE)

    def __init__(self, scope: S, factory: Factory) -> None:
        self.scope = scope
        self.factory = factory
        self.reach: Counter[str] = Counter()
        # What is available after each operation, where the model asks for it anyway.
        self.avails: list[int | None] = []

    @abstractmethod
    def step(self, op: Op) -> Any:
        """Executes one operation, checks every law and returns the target's answer.

        Raises Divergence, or NotEnabled (and changes nothing) if the operation is not legal in this state.
        """

    @abstractmethod
    def redo(self, op: Op) -> None:
        """Executes an operation that `step` has accepted before in the same state, without judging it again."""

    @abstractmethod
    def fingerprint(self) -> Hashable:
        """The abstract state: equal fingerprints need no second exploration."""

    def sketch(self) -> Hashable:
        """The abstract state as far as it is known without asking the target, whose answers may change it."""
        return self.fingerprint()

    @property
    @abstractmethod
    def evaluated(self) -> Counter[str]:
        """How often each law, by its id, was evaluated since `forget`."""

    def forget(self) -> None:
        """Forgets what was reached and evaluated so far, so that only later steps count."""
        self.reach.clear()

    def not_checked(self) -> dict[str, str]:
        """Laws that this target does not expose enough for: id to reason."""
        return {}

    def unreachable(self) -> set[str]:
        """Goals that do not apply to this target."""
        return set()

    def describe(self) -> dict[str, Any]:
        """Facts on the target for the report header."""
        return {}

    @classmethod
    def simpler_scopes(cls, scope: Any) -> Iterable[Scope]:
        """Smaller scopes to try when a trace is shrunk, most wanted first."""
        return ()

    @classmethod
    def smaller(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        """The operations in smaller scopes, changed where the scope asks for it."""
        return ((smaller, ops) for smaller in cls.simpler_scopes(scope))

    @classmethod
    def smaller_at_once(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        """Smaller scopes and simpler operations for a trace that is short already, where neither helps alone."""
        return ()

    @classmethod
    def shortcuts(cls, ops: Sequence[Op], answers: Sequence[str]) -> Iterable[Sequence[Op]] | None:
        """Much shorter operations to try first when a long trace is shrunk; None if the model knows of no such."""
        return None

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        """The same operations with names, then also values, numbered from 0."""
        return ()

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        """Simpler variants of an operation to try when a trace is shrunk, most wanted first."""
        return simpler_args(op)


def simpler_args(op: Op) -> Iterable[Op]:
    """Smaller integers, shorter sequences, smaller elements."""
    for name, value in op.args.items():
        for smaller in _smaller(value):
            yield op.but(**{name: smaller})


def _smaller(value: Any) -> Iterable[Any]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int) and value > 0:
        yield from sorted({0, 1, value // 2, value - 1} - {value})
    if isinstance(value, (list, tuple)):
        make = type(value)
        # Two less as well as one: lengths modulo a block keep their parity.
        for size in sorted({0, 1, len(value) // 2, len(value) - 2, len(value) - 1}):
            if 0 <= size < len(value):
                yield value[:size]
        for i, element in enumerate(value):
            yield make([*value[:i], *value[i + 1 :]])
            for smaller in _smaller(element):
                yield make([*value[:i], smaller, *value[i + 1 :]])


R = TypeVar("R")


def guarded(call: Callable[..., R], /, *args: Any, called: str | None = None) -> R | Refused:
    """Calls the target. A contract error becomes Refused; a time-out, an exit, any other exception is a Divergence."""
    try:
        return call(*args)
    except ContractError as error:
        return Refused(type(error).__name__)
    except BaseException as error:
        let_interrupt_out(error)
        raise unexpected(error, called or str(getattr(call, "__name__", "call"))) from None


def looked_at(look: Callable[..., R], /, *args: Any) -> R:
    """Looks at the target, which may raise nothing; a time-out or any exception is a Divergence."""
    try:
        return look(*args)
    except BaseException as error:
        let_interrupt_out(error)
        raise unexpected(error, "a look at it afterwards") from None


def let_interrupt_out(error: BaseException) -> None:
    """Raises an interrupt again, unless this process ignores interrupts: then the target has raised it."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error


def unexpected(error: BaseException, call: str) -> Divergence:
    """What a call did that is in no contract: it took too long, or raised some other error.

    A Divergence is one already, of a call inside this one.
    """
    if isinstance(error, Divergence):
        return error
    if isinstance(error, StepTimeout):
        return Divergence(TERMINATION.id, f"{call} did not return within the time limit")
    return Divergence(ERROR_CONTRACT.id, f"{call} raised {said(error)}", _innermost(error))


def _innermost(error: BaseException) -> list[str]:
    """The end of an error's traceback: the innermost frames, each of them whole, and what was raised."""
    inside = error.__traceback__.tb_next if error.__traceback__ else None
    parts = [part.splitlines() for part in traceback.format_exception(type(error), error, inside)]
    last = next((i for i, part in enumerate(reversed(parts)) if part and part[0].startswith("  File ")), len(parts))
    lines = [line for part in parts[len(parts) - last :] for line in part][: TRACEBACK_LINES // 2]
    for part in reversed(parts[: len(parts) - last]):
        if len(lines) + len(part) > TRACEBACK_LINES:
            break
        lines = [*part, *lines]
    return lines


def said(error: BaseException) -> str:
    """The type and the text of an error; the type alone if it cannot be printed."""
    try:
        return safe_text(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__


class LockstepModel(Model[S]):
    """A deterministic contract: the reference and the target must agree exactly.

    Laws see the target. Where both agree they are checked once, which checks the reference as well.
    """

    reference_type: ClassVar[Factory]

    def __init__(self, scope: S, factory: Factory) -> None:
        super().__init__(scope, factory)
        sizes = self.factory_arguments(scope)
        self.reference = self.reference_type(**sizes)
        self.target = guarded(factory, *sizes.values())
        self.held: Any = self.nothing_held()
        self.view = self.observe(self.reference)
        self._judged = 0
        self._require(self.view, guarded(self.observe, self.target), "a new target looks different")

    @abstractmethod
    def factory_arguments(self, scope: S) -> dict[str, Any]:
        """The factory's arguments for this scope, in the order of its parameters."""

    @abstractmethod
    def perform(self, system: Any, op: Op) -> Any:
        """Executes the operation on the reference or the target and returns its answer as plain values."""

    @abstractmethod
    def observe(self, system: Any) -> Any:
        """Everything observable, as comparable plain values."""

    @abstractmethod
    def nothing_held(self) -> Any:
        """The initial value of `held`, immutable."""

    @abstractmethod
    def holds_after(self, held: Any, op: Op, outcome: Any) -> Any:
        """Who holds what after this outcome; a new value, `held` is not changed."""

    def notice(self, step: Step) -> None:
        """Counts reach goals."""

    @property
    def evaluated(self) -> Counter[str]:
        """Every law looks at every step."""
        return Counter({law.id: self._judged for law in self.laws})

    def forget(self) -> None:
        super().forget()
        self._judged = 0

    def step(self, op: Op) -> Any:
        try:
            want = self.perform(self.reference, op)
        except ContractError as error:
            want = Refused(type(error).__name__)
        except ARGUMENT_ERRORS as error:
            raise Unplayable(f"the reference cannot do {op}: {said(error)}") from error
        got = guarded(self.perform, self.target, op, called=op.name)
        view = self.observe(self.reference)
        seen = looked_at(self.observe, self.target)
        step = Step(op, got, self.view, seen, self.held, self.holds_after(self.held, op, got))
        unable: LawError | None = None
        for law in self.own_laws:
            try:
                wrong = law.check(step)
            except Exception as error:
                # The target may have answered with another type than the contract's. Then the comparison below says
                # so, which is the better message; if it finds nothing, the law itself is at fault.
                unable = unable or law_error(law, error)
                continue
            if wrong is not None:
                raise Divergence(law.id, wrong, () if want == got else (f"reference: {show(want)}",))
        if want != got:
            raise Divergence(AGREEMENT.id, f"answered {show(got)}", (f"reference: {show(want)}",))
        if view != seen:
            self._require(view, seen, "looks different afterwards")
        if unable is not None:
            raise unable
        self.view, self.held = view, step.held
        self._judged += 1
        self.notice(step)
        return got

    def redo(self, op: Op) -> None:
        outcome = guarded(self.perform, self.reference, op)
        guarded(self.perform, self.target, op)
        self.held = self.holds_after(self.held, op, outcome)
        self.view = self.observe(self.reference)

    def _require(self, want: Any, seen: Any, what: str) -> None:
        if want != seen:
            differing = [f"{name}: {show(s)}, reference: {show(w)}" for name, w, s in fields(want, seen) if w != s]
            raise Divergence(AGREEMENT.id, what, differing)


def fields(want: Any, seen: Any) -> Iterable[tuple[str, Any, Any]]:
    """The fields of two views side by side."""
    if isinstance(seen, Refused) or not hasattr(want, "_fields"):
        return [("view", want, seen)]
    return [(n, getattr(want, n), getattr(seen, n, None)) for n in want._fields]


def show(outcome: Any) -> str:
    """An outcome as the end of a trace line."""
    if outcome is None:
        return "done"
    return str(outcome) if isinstance(outcome, Refused) else repr(outcome)
