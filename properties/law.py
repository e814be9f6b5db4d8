"""Laws: their declaration and their evaluation."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from kvlockstep.reference.catalogue import CONTRACTS

# `needs` of a law can name a trait, or this optional answer.
FREE_SLOTS = "free_slots"


class Refused(NamedTuple):
    """The outcome of an operation that raised an error of its contract."""

    error: str

    def __str__(self) -> str:
        return f"refused, {self.error}"


class Operation(Protocol):
    """The part of an operation that laws look at: its name, and its arguments by name."""

    @property
    def name(self) -> str: ...

    @property
    def args(self) -> Mapping[str, Any]: ...


View = TypeVar("View", bound=tuple[Any, ...])
Held = TypeVar("Held")


class Step(NamedTuple, Generic[View, Held]):
    """One operation of a deterministic contract with its outcome and the states around it, which laws look at.

    `before` and `after` are the states that the target shows, as the View of the contract. `held_before` and `held`
    follow from the results so far, as the Held of the contract. `outcome` is the target's result as plain values, or
    Refused.
    """

    op: Operation
    outcome: Any
    before: View
    after: View
    held_before: Held
    held: Held

    @property
    def changed(self) -> str:
        """The fields of the view that differ before and after, as words of a sentence."""
        names = getattr(self.after, "_fields", ())
        return ", ".join(n for n, a, b in zip(names, self.before, self.after, strict=True) if a != b) or "the view"


P = ParamSpec("P")


class LawError(Exception):
    """A law raised instead of judging: an error of the law or of the harness, not a violation."""


def law_error(law: Law[Any], error: Exception) -> LawError:
    """Returns the error of a law as one sentence, followed by the place in the law."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename}:{place.lineno}"
    return LawError(f"law {law.id} of {law.contract} raised {type(error).__name__}: {error} ({where})")


def verdict(law: Law[Any], *observed: Any) -> str | None:
    """Evaluates the law; returns None, or one sentence that says what is wrong.

    Raises LawError if the law cannot judge.
    """
    try:
        return law.check(*observed)
    except Exception as error:
        raise law_error(law, error) from error


def counted(n: int, noun: str) -> str:
    """A number with its noun: 1 slot, 2 slots, 2 batches."""
    ending = "" if n == 1 else "es" if noun.endswith("ch") else "s"
    return f"{n:,} {noun}{ending}"


# The forms of verbs that agree with one thing.
OF_ONE = {"are": "is", "were": "was", "have": "has", "come": "comes", "wait": "waits"}


def agree(n: int, verb: str) -> str:
    """A verb in agreement with a number: 1 slot was, 2 slots were."""
    return OF_ONE[verb] if n == 1 else verb


@dataclass(frozen=True)
class Law(Generic[P]):
    """A law of one contract. Called with what it observes, it returns None, or one
    sentence that says what is wrong.

    `needs` names what a target must expose beyond its contract's required methods: traits, or `free_slots`. `answers`
    names the seeds and bug reports behind the law. Raises ValueError for a need that the contract does not have: such a
    law would be checked on every target.
    """

    id: str
    contract: str
    statement: str
    check: Callable[P, str | None]
    needs: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        contract = CONTRACTS.get(self.contract)
        known = {*contract.traits, FREE_SLOTS} if contract is not None and contract.traits else set()
        for need in self.needs:
            if need not in known:
                close = difflib.get_close_matches(need, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ValueError(f"law {self.id} needs {need!r}, which {self.contract} does not have{hint}")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        return self.check(*args, **kwargs)


def law(
    contract: str, *, needs: tuple[str, ...] = (), answers: tuple[str, ...] = ()
) -> Callable[[Callable[P, str | None]], Law[P]]:
    """Makes a law of a function: its name is the id, its docstring the statement."""

    def declare(check: Callable[P, str | None]) -> Law[P]:
        if not check.__doc__:
            raise ValueError(f"law {check.__name__} has no statement: write its docstring, and run Python without -OO")
        statement = " ".join(check.__doc__.split())
        return Law(check.__name__, contract, statement, check, needs, answers)

    return declare


def laws_of(namespace: dict[str, Any]) -> tuple[Law[Any], ...]:
    """The laws declared in a module, in order."""
    return tuple(value for value in namespace.values() if isinstance(value, Law) and value.contract != "*")


AGREEMENT = Law[[Any]](
    "agreement",
    "*",
    "After each operation the target's result and visible state equal the reference's.",
    lambda _: None,
)
ERROR_CONTRACT = Law[[Any]](
    "error_contract",
    "*",
    "A call raises only the errors that its contract names, and returns the kind of value that it names.",
    lambda _: None,
)
TERMINATION = Law[[Any]]("termination", "*", "Every call returns within the time limit.", lambda _: None)
EVERYWHERE = (AGREEMENT, ERROR_CONTRACT, TERMINATION)
