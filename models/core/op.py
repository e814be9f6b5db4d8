"""Operations, and the choices that propose them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Op:
    """One operation of a contract with its arguments, as a trace has it: `Op("free", slot=2)`."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, /, **args: Any) -> None:
        self.name = name
        self.args = args

    def __repr__(self) -> str:
        return f"Op({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.args.items())])})"

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{k}={format_value(v)}" for k, v in self.args.items() if v not in (None, []))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and self.name == other.name and self.args == other.args

    def __hash__(self) -> int:
        return hash(repr(self))

    def but(self, **changes: Any) -> Op:
        """Returns the operation with some arguments changed."""
        return Op(self.name, **{**self.args, **changes})


def format_value(value: Any) -> str:
    """A value as one word of a trace line."""
    if isinstance(value, tuple):
        value = list(value)
    return str(value).replace(", ", ",") if isinstance(value, list) else str(value)


class NotEnabled(Exception):
    """The command proposes nothing in this state, or the operation is not legal in it."""


class Unplayable(Exception):
    """Raised for an operation that not even the reference can execute; no model proposes one. `number` is from 0."""

    def __init__(self, reason: str, number: int = 0) -> None:
        super().__init__(reason, number)
        self.reason = reason
        self.number = number


class Pick(Protocol):
    """The only source of nondeterminism: chooses one of the options, raises NotEnabled if there is none."""

    def __call__(self, options: Sequence[T], /) -> T: ...


def require(enabled: object) -> None:
    """Raises NotEnabled unless `enabled` is true."""
    if not enabled:
        raise NotEnabled


def one_in(n: int, pick: Pick, *, first: bool = False) -> bool:
    """Picks True from `n` options of which the others are False. True is the last one, or the `first`.

    The place matters where options are taken in order: `pick_first` and exhaustive exploration begin with the first.
    """
    return pick((True, *(n - 1) * (False,)) if first else (*(n - 1) * (False,), True))


def pick_first(options: Sequence[T]) -> T:
    """The pick that always takes the first option; tells whether a command is enabled."""
    if not options:
        raise NotEnabled
    return options[0]


def sample(pick: Pick, options: Iterable[T], n: int) -> list[T]:
    """`n` different options in any order, or all of them if there are fewer."""
    rest, chosen = list(options), []
    for _ in range(min(n, len(rest))):
        chosen.append(pick(rest))
        rest.remove(chosen[-1])
    return chosen


Propose = Callable[[Any, Pick], Op]
When = Callable[[Any, Pick], object]


class Command:
    """A proposal: a method `(model, pick) -> Op`, with the weight it has in random runs.

    `when(model, pick)`, if there is one, is false if the command proposes nothing now; it may leave that to `pick`.
    A command that `needs` a trait is left out for targets without it, as if it were not there.
    """

    __slots__ = ("doc", "name", "needs", "propose", "weight", "when")

    def __init__(self, propose: Propose, weight: int, when: When | None = None, needs: str | None = None) -> None:
        self.propose = propose
        self.name = propose.__name__
        self.doc = (propose.__doc__ or "").strip()
        self.weight = weight
        self.when = when
        self.needs = needs


def command(weight: int = 1, when: When | None = None, needs: str | None = None) -> Callable[[Propose], Propose]:
    """Declares a method of a Model as a command."""

    def declare(propose: Propose) -> Propose:
        propose.command = Command(propose, weight, when, needs)  # type: ignore[attr-defined]
        return propose

    return declare
