"""Commands of kv_write: rows of every kind are written to slots in every order, with padding and repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvlockstep.models.core.model import Factory, Model, Scope, simpler_args
from kvlockstep.models.core.op import Op, Pick, command, one_in, require, sample
from kvlockstep.models.core.operations import Ints
from kvlockstep.models.core.picture import Picture
from kvlockstep.models.kv_write.goals import GOALS, kinds_left_out, unreachable
from kvlockstep.models.kv_write.judge import WriteJudge
from kvlockstep.models.kv_write.scope import KVWriteScope, scopes
from kvlockstep.models.requests.adapter import named, not_checked
from kvlockstep.models.requests.answers import DONE, Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.properties.kv_write.laws import LAWS
from kvlockstep.properties.kv_write.rows import KINDS, SEEDS, kind_of
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION
from kvlockstep.reference.kv_write.contract import PAD_SLOT
from kvlockstep.reference.kv_write.geometry import SCALES

QUANTISED = ("scale_exact", "codes", "decoded_within_bound")


class KVWriteModel(Model[KVWriteScope]):
    contract = "kv_write"
    laws = LAWS
    goals = GOALS
    scope_type = KVWriteScope
    operations = {
        "write": {"layer": int, "slots": Ints, "stamps": Ints},
        "gather": {"layer": int, "slots": Ints},
    }
    scopes = tuple(scopes())
    small_scopes = (
        KVWriteScope(2, 1, 1, 1, 2, 2, 1, 1, 0, exhaustive=True),
        KVWriteScope(1, 1, 2, 2, 1, 1, 0, 0, 1, exhaustive=True),
    )

    def __init__(self, scope: KVWriteScope, factory: Factory) -> None:
        super().__init__(scope, factory)
        self.judge = WriteJudge(factory, scope, Checks(self.laws))
        self.goals_met = self.judge.goals_met

    @command(6)
    def write(self, pick: Pick) -> Op:
        """Rows are written to slots of a layer."""
        geometry, traits = self.judge.geometry, self.judge.traits
        layer, slots = pick(range(geometry.layers)), list(range(geometry.slots))
        if self.scope.exhaustive:
            first = [PAD_SLOT] if traits.pads and pick((False, True)) else []
            return Op("write", layer=layer, slots=[*first, pick(slots)], stamps=[*(2 for _ in first), pick((1, 3))])
        chosen = sample(pick, slots, pick((geometry.slots, 1, geometry.block_size, 2, 3, 1, 0)))
        if traits.pads:
            all_padding = one_in(12, pick)
            chosen = [PAD_SLOT if all_padding or one_in(6, pick) else slot for slot in chosen]
        if traits.repeats and chosen and one_in(10, pick):
            chosen.append(pick(chosen))
        return Op("write", layer=layer, slots=chosen, stamps=[self._stamp(pick) for _ in chosen])

    @command(1)
    def gather(self, pick: Pick) -> Op:
        """Slots of a layer are read."""
        geometry = self.judge.geometry
        require(self.judge.traits.can_gather)
        slots = range(geometry.slots)
        count = 1 if self.scope.exhaustive else pick((1, 2, 3, geometry.slots))
        return Op("gather", layer=pick(range(geometry.layers)), slots=[pick(slots) for _ in range(count)])

    def step(self, op: Op) -> Answer:
        require(self._legal(op))
        getattr(self.judge, op.name)(**op.args)
        self.evaluated[ERROR_CONTRACT.id] += 1
        self.evaluated[TERMINATION.id] += 1
        return DONE

    def redo(self, op: Op) -> None:
        if op.name == "write":
            self.judge.repeat(**op.args)

    @property
    def evaluated(self) -> Counter[str]:
        return self.judge.checks.evaluated

    def forget(self) -> None:
        super().forget()
        self.evaluated.clear()

    def not_checked(self) -> dict[str, str]:
        traits = self.judge.traits
        missing = not_checked(self.laws, traits, shows_free=True)
        if traits.scale == "none":
            missing |= dict.fromkeys(QUANTISED, "the target quantises nothing")
        else:
            if traits.value_scale != "none":
                quantised = "the target quantises, so codes and decoded_within_bound are checked instead"
                missing |= dict.fromkeys(("content_equality", "repeats"), quantised)
            if not (SCALES[traits.scale] or SCALES[traits.value_scale or traits.scale]):
                missing["scale_exact"] = "the target sets no scale"
        if not traits.pads:
            missing["padding"] = "the target declares no pads"
        if not traits.can_gather:
            missing["purity"] = "the target declares no can_gather"
        return missing

    def unreachable(self) -> set[str]:
        return unreachable(self.judge.traits)

    def describe(self) -> dict[str, Any]:
        return {**named(self.judge.adapter), "traits": self.judge.traits}

    def picture(self) -> Picture:
        return self.judge.picture()

    def fingerprint(self) -> Any:
        return self.judge.buffers

    @classmethod
    def simpler_scopes(cls, scope: KVWriteScope) -> Iterable[Scope]:
        for name in (
            "key_gap",
            "value_gap",
            "layers",
            "heads",
            "key_dim",
            "value_dim",
            "block_size",
            "blocks",
            "variant",
        ):
            size, least = getattr(scope, name), 0 if name in ("key_gap", "value_gap", "variant") else 1
            for smaller in sorted({least, size // 2, size - 1}):
                if least <= smaller < size:
                    changed: dict[str, Any] = {name: smaller}
                    yield replace(scope, **changed)
        if scope.key_dim > 1 and scope.value_dim > 1:
            yield replace(scope, key_dim=scope.key_dim - 1, value_dim=scope.value_dim - 1)

    @classmethod
    def simpler(cls, op: Op) -> Iterable[Op]:
        if op.name == "write":
            for i in range(min(len(op.args["slots"]), len(op.args["stamps"]))):
                yield op.but(
                    **{name: [v for j, v in enumerate(op.args[name]) if j != i] for name in ("slots", "stamps")}
                )
        yield from simpler_args(op)

    def _stamp(self, pick: Pick) -> int:
        if self.judge.geometry.scale == "none":
            return pick(range(1, 48))
        never = kinds_left_out(self.judge.traits)
        kinds = [i for i, kind in enumerate(KINDS) if kind not in never]
        return pick(range(SEEDS)) * len(KINDS) + pick(kinds)

    def _legal(self, op: Op) -> bool:
        """Tells whether the caller may do this: a shorter trace may name slots that there are not."""
        geometry, traits, args = self.judge.geometry, self.judge.traits, op.args
        real = [slot for slot in args["slots"] if slot != PAD_SLOT]
        known = 0 <= args["layer"] < geometry.layers and all(0 <= slot < geometry.slots for slot in real)
        if op.name == "gather":
            return known and traits.can_gather and PAD_SLOT not in args["slots"]
        whole = len(args["stamps"]) == len(args["slots"]) and min(args["stamps"], default=0) >= 0
        never = kinds_left_out(traits)
        if geometry.scale != "none" and any(kind_of(stamp) in never for stamp in args["stamps"]):
            return False
        once = traits.repeats or len(set(real)) == len(real)
        return known and whole and once and (traits.pads or len(real) == len(args["slots"]))
