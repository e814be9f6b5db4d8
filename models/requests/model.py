"""Model of a request contract: a judge makes the calls, and no reference runs beside the target."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, ClassVar, Protocol

from kvlockstep.models.core.model import Divergence, Factory, Model, S, Scope
from kvlockstep.models.core.op import Command, NotEnabled, Op, Pick, require
from kvlockstep.models.requests.adapter import named, not_checked, probed
from kvlockstep.models.requests.answers import Answer
from kvlockstep.models.requests.shrinking import by_request, plain_keys, smaller_pools, thinned_blocks, tidied
from kvlockstep.models.requests.tables import Tables
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.reference.catalogue import CONTRACTS


class Judge(Protocol):
    """A judge under operations: it has a method for each, of the operation's name, which returns an Answer.

    `so_far` is the answer of the last one as text, up to the failure if it failed; `avail` counts the available slots
    after it, None if unknown.
    """

    adapter: Any
    traits: Any
    tables: Tables
    avail: int | None
    goals_met: Counter[str]
    evaluated: Counter[str]

    @property
    def so_far(self) -> str: ...
    def begin(self) -> None: ...
    def allows(self, operation: str) -> bool: ...


class RequestModel(Model[S]):
    """One episode under a judge, which the subclass makes and passes on.

    `kept_tokens` mean something to the contract, so shrinking leaves them as they are.
    """

    judge: Any
    kept_tokens: ClassVar[tuple[int, ...]] = ()

    def __init__(self, scope: S, factory: Any, judge: Judge) -> None:
        super().__init__(scope, factory)
        self.judge = judge
        self.goals_met = judge.goals_met
        self._named = 0

    def propose(self, command: Command, pick: Pick) -> Op:
        require(self.judge.allows(command.name))
        return super().propose(command, pick)

    @property
    def table(self) -> tuple[Command, ...]:
        needs = {command.needs for command in self.commands if command.needs}
        return _table_for(type(self), frozenset(trait for trait in needs if getattr(self.judge.traits, trait)))

    @classmethod
    def commands_for(cls, factory: Factory | None) -> tuple[Command, ...]:
        # One instance tells; what is wrong with it shows when the episodes begin.
        made = factory and probed(factory, *CONTRACTS[cls.contract].probe.values())
        return tuple(c for c in cls.commands if c.needs is None or factory is None or getattr(made, c.needs, None))

    @property
    def evaluated(self) -> Counter[str]:
        counts: Counter[str] = self.judge.evaluated
        return counts

    def forget(self) -> None:
        super().forget()
        self.judge.evaluated.clear()

    def step(self, op: Op) -> Answer:
        return self.execute(op)

    def redo(self, op: Op) -> None:
        self.execute(op)

    def execute(self, op: Op) -> Answer:
        """Executes the operation by the judge. A Divergence carries the answer so far, and `avails`."""
        if op.name not in self.operations:
            raise NotEnabled
        judge, args = self.judge, dict(op.args)
        name = args.pop("request", None)
        method = getattr(judge, op.name)
        judge.begin()
        try:
            answer: Answer = method(**args) if name is None else method(name, **args)
        except Divergence as divergence:
            divergence.answer, divergence.avails = judge.so_far, (*self.avails, judge.avail)
            raise
        self.avails.append(judge.avail)
        judge.evaluated[ERROR_CONTRACT.id] += 1
        judge.evaluated[TERMINATION.id] += 1
        for created in (name, args.get("child")):
            if created and created[1:].isdecimal():
                self._named = max(self._named, int(created[1:]) + 1)
        return answer

    def not_checked(self) -> dict[str, str]:
        return not_checked(self.laws, self.judge.traits, self.judge.tables.shows_free)

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    @abstractmethod
    def unreachable(self) -> set[str]: ...

    @classmethod
    def simpler_scopes(cls, scope: Any) -> Iterable[Scope]:
        return smaller_pools(scope)

    @classmethod
    def smaller(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        yield from super().smaller(scope, ops)
        yield from thinned_blocks(scope, ops)

    @classmethod
    def smaller_at_once(cls, scope: Any, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        return ((scope, plainer) for plainer in plain_keys(ops))

    @classmethod
    def parts(cls, ops: Sequence[Op]) -> list[set[int]]:
        return by_request(ops)

    @classmethod
    def tidy(cls, ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
        return tidied(ops, kept=cls.kept_tokens)


@cache
def _table_for(model: type[Model[Any]], traits: frozenset[str]) -> tuple[Command, ...]:
    """The commands for a target with these traits, each as often as it weighs."""
    commands = (c for c in model.commands if c.needs is None or c.needs in traits)
    return tuple(c for c in commands for _ in range(c.weight))
