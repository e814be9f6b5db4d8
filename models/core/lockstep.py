"""Models that run the reference beside the target and compare them after each operation."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from kvlockstep.models.core.calls import call_target, describe_error, inspect_target
from kvlockstep.models.core.model import Divergence, Factory, Model, S
from kvlockstep.models.core.op import Op, Unplayable
from kvlockstep.models.core.picture import NOTHING, Picture, fields_table
from kvlockstep.properties.law import AGREEMENT, LawError, Refused, Step, law_error
from kvlockstep.reference.errors import ContractError

# What Python says of arguments that nobody thought of.
ARGUMENT_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError, RecursionError)


class LockstepModel(Model[S]):
    """A deterministic contract: the reference and the target must agree exactly.

    Laws see the target. Where both agree they are checked once, which checks the reference as well.
    """

    reference_type: ClassVar[Factory]

    def __init__(self, scope: S, factory: Factory) -> None:
        super().__init__(scope, factory)
        sizes = self.factory_arguments(scope)
        self.reference = self.reference_type(**sizes)
        self.target = call_target(factory, *sizes.values())
        self.held: Any = self.nothing_held()
        self.view = self.observe(self.reference)
        self._judged = 0
        self._require(self.view, call_target(self.observe, self.target), "a new target looks different")

    @abstractmethod
    def factory_arguments(self, scope: S) -> dict[str, Any]:
        """The factory's arguments for this scope, in the order of its parameters."""

    @abstractmethod
    def perform(self, system: Any, op: Op) -> Any:
        """Executes the operation on the reference or the target and returns its result as plain values."""

    @abstractmethod
    def observe(self, system: Any) -> Any:
        """Everything observable, as comparable plain values."""

    @abstractmethod
    def nothing_held(self) -> Any:
        """The initial value of `held`, immutable."""

    @abstractmethod
    def holds_after(self, held: Any, op: Op, outcome: Any) -> Any:
        """Returns the Held after this outcome as a new value; `held` is not changed."""

    def draw(self, view: Any) -> Picture:
        """Draws the view as a picture; as a table of its fields, unless the contract draws its own."""
        return NOTHING._replace(tables=(fields_table("view", view),))

    def picture(self) -> Picture:
        view = self.observe(self.target)
        try:
            return self.draw(view)
        except (TypeError, ValueError, AttributeError, LookupError):
            # The target may have returned other types than the contract's: such a target is worth a picture, too.
            return LockstepModel.draw(self, view)

    def notice(self, step: Step[Any, Any]) -> None:
        """Counts the goals that the step has met."""

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
            raise Unplayable(f"the reference cannot do {op}: {describe_error(error)}") from error
        got = call_target(self.perform, self.target, op, called=op.name)
        view = self.observe(self.reference)
        seen = inspect_target(self.observe, self.target)
        step = Step(op, got, self.view, seen, self.held, self._held_after(op, got, want))
        unable: LawError | None = None
        for law in self.own_laws:
            try:
                wrong = law.check(step)
            except Exception as error:
                # The target may have returned another type than the contract's. Then the comparison below says so,
                # which is the better message; if it finds nothing, the law itself is at fault.
                unable = unable or law_error(law, error)
                continue
            if wrong is not None:
                raise Divergence(law.id, wrong, () if want == got else (f"reference: {show(want)}",))
        if want != got:
            raise _disagreement(got, want)
        if view != seen:
            self._require(view, seen, "looks different afterwards")
        if unable is not None:
            raise unable
        self.view, self.held = view, step.held
        self._judged += 1
        self.notice(step)
        return got

    def _held_after(self, op: Op, got: Any, want: Any) -> Any:
        try:
            return self.holds_after(self.held, op, got)
        except Exception:
            if want == got:
                raise
            # The target has returned another type than the contract's.
            raise _disagreement(got, want) from None

    def redo(self, op: Op) -> None:
        outcome = call_target(self.perform, self.reference, op)
        call_target(self.perform, self.target, op)
        self.held = self.holds_after(self.held, op, outcome)
        self.view = self.observe(self.reference)

    def _require(self, want: Any, seen: Any, what: str) -> None:
        if want != seen:
            differing = [f"{name}: {show(s)}, reference: {show(w)}" for name, w, s in fields(want, seen) if w != s]
            raise Divergence(AGREEMENT.id, what, differing)


def _disagreement(got: Any, want: Any) -> Divergence:
    return Divergence(AGREEMENT.id, f"returned {show(got)}", (f"reference: {show(want)}",))


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
