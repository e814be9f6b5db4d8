"""Commands of a kv_tier: owners store and load runs of chunks; plans end in any order, or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from kvlockstep.models.core.model import Factory, Model, Scope, simpler_args
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, require
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_tier.goals import GOALS, unreachable
from kvlockstep.models.kv_tier.judge import TierJudge
from kvlockstep.models.kv_tier.operations import OPERATIONS
from kvlockstep.models.kv_tier.picture import picture
from kvlockstep.models.requests.adapter import make_adapter, named, not_checked
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_tier import LAWS
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.reference.kv_tier.contract import DAMAGES, Key


@dataclass(frozen=True)
class TierScope(Scope):
    """A tier of `units` units under `owners`, whose chunks have hashes below `hashes`; at most `plans` in flight.

    `longest`: most chunks of one call. `extra_keys`: those that keys have, where the tier takes any.
    """

    units: int
    hashes: int
    _: KW_ONLY
    owners: int = 2
    plans: int = 3
    longest: int = 3
    extra_keys: tuple[int | None, ...] = (None, None, 7)
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {"units": self.units}


class KVTierModel(Model[TierScope]):
    contract = "kv_tier"
    laws = LAWS
    goals = GOALS
    scope_type = TierScope
    operations = OPERATIONS
    scopes = (
        TierScope(2, 4),
        TierScope(3, 5, plans=2),
        TierScope(4, 6, plans=4, longest=4),
        TierScope(1, 3, plans=2),
        TierScope(6, 9, plans=6, longest=5, owners=3),
        TierScope(12, 20, plans=8, longest=8, owners=3),
    )
    # Two names of one hash; two plans on one unit; a run of two chunks; loads beside stores.
    small_scopes = (
        TierScope(1, 1, owners=2, plans=1, longest=1, extra_keys=(None, 7), exhaustive=True),
        TierScope(1, 2, owners=1, plans=2, longest=1, extra_keys=(None,), exhaustive=True),
        TierScope(2, 2, owners=1, plans=1, longest=2, extra_keys=(None,), exhaustive=True),
        TierScope(2, 2, owners=1, plans=2, longest=1, extra_keys=(None,), exhaustive=True),
    )

    def __init__(self, scope: TierScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.judge = TierJudge(make_adapter(factory, scope.units), Checks(self.laws))
        self.goals_met = self.judge.goals_met
        self._evaluated = self.judge.checks.evaluated

    @command(4)
    def lookup(self, pick: Pick) -> Op:
        """An owner asks how much of a run is there."""
        return Op("lookup", keys=self._run(pick), owner=self._owner(pick))

    @command(3, when=lambda self, _: self.judge.traits.can_pin)
    def pin(self, pick: Pick) -> Op:
        """An owner pins what is there of a run that begins with a stored chunk."""
        first = pick(list(self.judge.books.chunks))
        return Op("pin", keys=self._run(pick, first), owner=self._owner(pick))

    @command(7, when=lambda self, _: len(self.judge.books.in_flight) < self.scope.plans)
    def store(self, pick: Pick) -> Op:
        """An owner offers a run of chunks."""
        return Op("store", keys=self._run(pick), owner=self._owner(pick))

    @command(6, when=lambda self, _: self._loadable())
    def load(self, pick: Pick) -> Op:
        """An owner loads what is there of a run that begins with a stored chunk."""
        first = pick(list(self.judge.books.chunks))
        return Op("load", keys=self._run(pick, first), owner=self._owner(pick))

    @command(7)
    def complete(self, pick: Pick) -> Op:
        """A plan ends well, the oldest, the newest or any other."""
        return Op("complete", nth=pick(range(len(self.judge.books.in_flight))), ok=True)

    @command(2)
    def fail(self, pick: Pick) -> Op:
        """A plan ends badly."""
        return Op("complete", nth=pick(range(len(self.judge.books.in_flight))), ok=False)

    @command(1)
    def complete_again(self, pick: Pick) -> Op:
        """The plan that has ended last is completed once more."""
        require(self.judge.books.done)
        return Op("complete_again", ok=pick((True, False)))

    @command(1)
    def touch(self, pick: Pick) -> Op:
        """A run was used in some other way."""
        return Op("touch", keys=self._run(pick))

    @command(2)
    def release(self, pick: Pick) -> Op:
        """An owner ends."""
        return Op("release", owner=self._owner(pick))

    @command(1, when=lambda self, _: self.judge.allows("reset"))
    def reset(self, pick: Pick) -> Op:
        """Everything is forgotten, as after new weights."""
        return Op("reset")

    @command(2, when=lambda self, _: self.judge.allows("write"))
    def write(self, pick: Pick) -> Op:
        """The bytes of one more chunk of a store arrive."""
        plans = enumerate(self.judge.books.in_flight.values())
        return Op("write", nth=pick([n for n, plan in plans if not plan.loads and plan.written < len(plan.units)]))

    @command(1, when=lambda self, _: self.judge.allows("damage"))
    def damage(self, pick: Pick) -> Op:
        """The storage damages a stored chunk."""
        return Op("damage", keys=[tuple(pick(list(self.judge.books.chunks)))], how=pick(DAMAGES))

    @command(1, when=lambda self, _: self.judge.allows("reopen"))
    def reopen(self, pick: Pick) -> Op:
        """The process ends without warning, and the tier is opened again."""
        return Op("reopen")

    def step(self, op: Op) -> str:
        if op.name not in self.operations:
            raise NotEnabled
        arguments = dict(op.args)
        if "keys" in arguments:
            arguments["keys"] = [Key(*key) for key in arguments["keys"]]
        answer: str = getattr(self.judge, op.name)(**arguments)
        self._evaluated[ERROR_CONTRACT.id] += 1
        self._evaluated[TERMINATION.id] += 1
        return answer

    def redo(self, op: Op) -> None:
        self.step(op)

    @property
    def evaluated(self) -> Counter[str]:
        return self._evaluated

    def forget(self) -> None:
        super().forget()
        self._evaluated.clear()

    def not_checked(self) -> dict[str, str]:
        missing = not_checked(self.laws, self.judge.traits, True)
        if self.judge.traits.holds_bytes:
            missing["content_equality"] = "the target declares holds_bytes, so whole_or_none is checked instead"
        return missing

    def unreachable(self) -> set[str]:
        return unreachable(self.judge.traits)

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    def picture(self) -> Picture:
        return picture(self.judge.books, self.judge.pool)

    def fingerprint(self) -> Any:
        return self.sketch()

    def sketch(self) -> Any:
        books, pool = self.judge.books, self.judge.pool
        plans = [(p.loads, tuple(p.units.items()), p.written, p.forgotten) for p in books.in_flight.values()]
        done = books.done and (books.done.loads, tuple(books.done.units.items()))
        fates = frozenset(books.fates.items())
        return tuple(books.chunks.items()), fates, tuple(plans), done, frozenset(books.pins), tuple(pool.free)

    @classmethod
    def simpler_scopes(cls, scope: TierScope) -> Iterable[Scope]:
        for units in range(1, scope.units):
            yield replace(scope, units=units)

    @classmethod
    def smaller_at_once(cls, scope: TierScope, ops: Sequence[Op]) -> Iterable[tuple[Scope, Sequence[Op]]]:
        # A store that fills the tier has to shrink with it.
        for units in range(1, scope.units):
            shorter = [op.but(keys=op.args["keys"][:units]) if "keys" in op.args else op for op in ops]
            yield replace(scope, units=units), shorter

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        for key in op.args.get("keys", ()):
            if key[1] is not None:
                yield op.but(keys=[(hash_, None) for hash_, _ in op.args["keys"]])
                break
        if op.args.get("owner", "a") != "a":
            yield op.but(owner="a")
        yield from (one for one in simpler_args(op) if all(len(key) == 2 for key in one.args.get("keys", ())))

    def _loadable(self) -> bool:
        books = self.judge.books
        return bool(books.chunks) and len(books.in_flight) < self.scope.plans

    def _owner(self, pick: Pick) -> str:
        return pick("abcdefgh"[: self.scope.owners])

    def _run(self, pick: Pick, first: Key | None = None) -> list[tuple[int, int | None]]:
        """Some chunks in a row, as the blocks of one prompt are."""
        scope = self.scope
        if first is None:
            extra_keys = scope.extra_keys if self.judge.traits.extra_key else (None,)
            first = Key(pick(range(scope.hashes)), pick(extra_keys))
        longest = min(scope.longest, scope.hashes)
        length = pick(range(1, longest + 1))
        return [((first.hash + i) % scope.hashes, first.extra_key) for i in range(length)]
