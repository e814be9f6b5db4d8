"""A model: the commands of one contract, and one episode of them on a target under its laws."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, get_type_hints

from kvlockstep.models.core.op import Command, Op, Pick, require
from kvlockstep.models.core.operations import Arguments
from kvlockstep.models.core.picture import NOTHING, Picture
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.properties.law import EVERYWHERE, Law

Factory = Callable[..., Any]


class Divergence(AssertionError):
    """A law does not hold. `law` is its id; `details` are further lines for the failure page.

    `answer` is the answer of the failing operation up to there. `avails` has the available slots after each operation,
    that one included, None where nobody asked. `printed` are lines that the target printed in the failing operation.
    """

    answer = ""
    avails: tuple[int | None, ...] = ()
    printed: tuple[str, ...] = ()

    def __init__(self, law: str, message: str, details: Sequence[str] = ()) -> None:
        self.law = law
        self.message = safe_text(message)
        self.details = tuple(map(safe_text, details))
        super().__init__(f"{law}: {self.message}")


@cache
def _types_of(scope: type[Scope]) -> dict[str, Any]:
    """The types of a scope's parameters; a trace is checked against them once for every scope that a model has."""
    return get_type_hints(scope)


@dataclass(frozen=True)
class Scope:
    """The size of an episode; subclasses name the parameters. Stands in the header of a trace."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """The parameters that a failure page shows."""
        return self.to_json()

    @property
    def stretch(self) -> int:
        """The factor by which random episodes in this scope are longer than others."""
        return 1

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """The parameters as `to_json` names them, each with its type."""
        # mypy takes the hash of an instance for that of its class.
        hints = _types_of(cast(Any, cls))
        return {f.name: hints[f.name] for f in fields(cls)}

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
    """One episode, made by `Model(scope, factory)`: a driver lets one of `commands` propose, and executes with `step`.

    A subclass names its contract, laws, goals, the `operations` that it executes with the types of their arguments,
    and the scopes that each driver runs: `scopes` for random and Hypothesis episodes, `small_scopes` for exhaustive
    exploration.
    """

    contract: ClassVar[str]
    laws: ClassVar[tuple[Law[Any], ...]]
    goals: ClassVar[tuple[Goal, ...]]
    scope_type: ClassVar[type[Scope]]
    operations: ClassVar[Mapping[str, Arguments]]
    scopes: ClassVar[tuple[Scope, ...]]
    small_scopes: ClassVar[tuple[Scope, ...]]
    commands: ClassVar[tuple[Command, ...]] = ()
    command_table: ClassVar[tuple[Command, ...]] = ()
    own_laws: ClassVar[tuple[Law[Any], ...]] = ()

    def __init_subclass__(cls) -> None:
        own = (v.command for v in vars(cls).values() if hasattr(v, "command"))
        cls.commands = tuple({c.name: c for c in itertools.chain(cls.commands, own)}.values())
        cls.command_table = tuple(c for c in cls.commands for _ in range(c.weight) if c.needs is None)
        cls.own_laws = tuple(law for law in getattr(cls, "laws", ()) if law not in EVERYWHERE)

    def __init__(self, scope: S, factory: Factory) -> None:
        self.scope = scope
        self.factory = factory
        self.goals_met: Counter[str] = Counter()
        # What is available after each operation, where the model asks for it anyway.
        self.avails: list[int | None] = []

    @property
    def table(self) -> tuple[Command, ...]:
        """The commands that a random step picks from, each as often as its weight says."""
        return self.command_table

    @classmethod
    def small_scopes_of(cls, factory: Factory) -> tuple[Scope, ...]:
        """The scopes to explore of this target; those of the model, and what its traits ask for."""
        return cls.small_scopes

    @classmethod
    def commands_for(cls, factory: Factory | None) -> tuple[Command, ...]:
        """The commands of a target, which may lack the traits of some; all of them if nobody says which target."""
        return cls.commands

    def propose(self, command: Command, pick: Pick) -> Op:
        """Returns the operation that a command proposes in this state. Raises NotEnabled if it proposes none."""
        if command.when is not None:
            require(command.when(self, pick))
        return command.propose(self, pick)

    @classmethod
    def law(cls, id_: str) -> Law[Any] | None:
        """The law of the contract with this id; None if it has no such law, as for the empty law of a saved trace."""
        return next((law for law in cls.laws if law.id == id_), None)

    @classmethod
    def judging_by(cls, *laws: Law[Any]) -> type[Self]:
        """Returns this model with these laws in place of its own of the same ids."""
        instead = {law.id: law for law in laws}
        return type(cls.__name__, (cls,), {"laws": tuple(instead.get(law.id, law) for law in cls.laws)})

    @classmethod
    def without(cls, laws: Iterable[Law[Any]]) -> type[Self]:
        """Returns this model with these laws silent, which shows what the others find."""
        return cls.judging_by(*(replace(law, check=lambda *_observed: None) for law in laws))

    @classmethod
    def laws_in_play(cls, evaluated: Mapping[str, int]) -> tuple[Law[Any], ...]:
        """The laws that results speak of; those of a part of the contract that the target has not are left out.

        `evaluated` counts the evaluations of each law, by its id.
        """
        return cls.laws

    @abstractmethod
    def step(self, op: Op) -> Any:
        """Executes one operation, checks every law and returns the target's result.

        Raises Divergence, or NotEnabled (and changes nothing) if the operation is not legal in this state.
        """

    @abstractmethod
    def redo(self, op: Op) -> None:
        """Executes an operation that `step` has accepted before in the same state, without judging it again."""

    def spare(self, every: int) -> bool:
        """From now on the model looks at everything only once in `every` times.

        Returns whether it does so; if it does, a violation shows later than without.
        """
        return False

    def catch_up(self) -> None:
        """Looks at everything, if the model has spared looks since the last time. Raises Divergence."""

    @abstractmethod
    def fingerprint(self) -> Hashable:
        """The abstract state: equal fingerprints need no second exploration."""

    def sketch(self) -> Hashable:
        """The abstract state as far as it is known without asking the target, since a question may change it."""
        return self.fingerprint()

    @property
    def evaluated(self) -> Counter[str]:
        """The evaluations of each law, by its id, since `forget`; a model that does not count proves none."""
        return Counter()

    def forget(self) -> None:
        """Clears the counts of goals and laws, so that only later steps count."""
        self.goals_met.clear()

    def not_checked(self) -> dict[str, str]:
        """Laws that this target does not expose enough for: id to reason."""
        return {}

    def unreachable(self) -> set[str]:
        """Goals that do not apply to this target."""
        return set()

    def describe(self) -> dict[str, Any]:
        """Facts on the target for the report header."""
        return {}

    def picture(self) -> Picture:
        """The state of the target now, as data to be shown. Raises whatever the target raises when it is inspected."""
        return NOTHING

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
        """Much shorter operations to try first when a long trace is shrunk; None if the model has none."""
        return None

    @classmethod
    def parts(cls, ops: Sequence[Op]) -> list[set[int]]:
        """The positions of operations that are dropped together when a long trace is shrunk, like a request's."""
        return []

    @classmethod
    def merged(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        """The operations with one actor fewer, whose operations another one takes over."""
        return ()

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        """Variants of the operations with names, then also values, numbered from 0."""
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
