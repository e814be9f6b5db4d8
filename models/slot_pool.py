"""Model of slot_pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Goal, Scope
from kvlockstep.models.core.op import Op, Pick, command
from kvlockstep.models.core.picture import CALLER, FREE, HELD, Cell, Picture, Table, numbers
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.slot_pool import LAWS, Held, View
from kvlockstep.reference.slot_pool import SlotPool


@dataclass(frozen=True)
class SlotPoolScope(Scope):
    """A pool of `slots` slots."""

    slots: int


class SlotPoolModel(LockstepModel[SlotPoolScope]):
    contract = "slot_pool"
    laws = LAWS
    reference_type = SlotPool
    scope_type = SlotPoolScope
    operations = {"alloc": {}, "free": {"slot": int}, "occupy": {"slot": int}}
    # One episode in eighty has more slots than a machine word has bits; looking at them all takes its time.
    scopes = (*(SlotPoolScope(n) for n in (1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 8) * 6), SlotPoolScope(66))
    small_scopes = tuple(SlotPoolScope(n) for n in range(5))
    goals = (
        Goal("exhausted", "an allocation is refused, since every slot is held"),
        Goal("physical_reuse", "a slot is allocated again after a free"),
        Goal("occupied", "occupy takes a free slot and keeps its version"),
        Goal("double_free", "a free slot is freed"),
        Goal("occupy_held", "occupy asks for a held slot"),
        Goal("foreign", "a call names a slot that is not in the pool"),
        Goal("hole", "a slot below a held one is allocated"),
    )

    def factory_arguments(self, scope: SlotPoolScope) -> dict[str, Any]:
        return scope.to_json()

    @command(3)
    def alloc(self, pick: Pick) -> Op:
        """Take the lowest free slot."""
        return Op("alloc")

    @command(3)
    def free(self, pick: Pick) -> Op:
        """Give a slot back, held or not."""
        return Op("free", slot=pick(range(self.scope.slots)))

    @command(1)
    def occupy(self, pick: Pick) -> Op:
        """Take one slot by name, free or not."""
        return Op("occupy", slot=pick(range(self.scope.slots)))

    @command(1)
    def foreign(self, pick: Pick) -> Op:
        """Name a slot that is just outside the pool."""
        return Op(pick(("free", "occupy")), slot=pick((-1, self.scope.slots)))

    def perform(self, system: Any, op: Op) -> Any:
        return getattr(system, op.name)(**op.args)

    def observe(self, system: Any) -> View:
        slots = range(self.scope.slots)
        return View(list(map(system.is_free, slots)), list(map(system.version, slots)), system.free_count)

    def draw(self, view: View) -> Picture:
        cells = {
            slot: Cell(
                FREE if free else HELD, () if free else (CALLER,), int(not free), f"version {view.versions[slot]}"
            )
            for slot, free in enumerate(view.free)
        }
        counters = (("free_count", str(view.free_count)), ("held by the results", numbers(sorted(self.held))))
        return Picture("slot", cells, (Table("counters", ("counter", "value"), counters),))

    def nothing_held(self) -> Held:
        return frozenset()

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        if op.name == "free":
            return held - {op.args["slot"]}
        return held | {outcome if op.name == "alloc" else op.args["slot"]}

    def notice(self, step: Step[View, Held]) -> None:
        name, outcome, met = step.op.name, step.outcome, self.goals_met
        if isinstance(outcome, Refused):
            kind = {"alloc": "exhausted", "free": "double_free", "occupy": "occupy_held"}[name]
            met["foreign" if outcome.error == "UnknownSlot" else kind] += 1
        elif name == "alloc":
            if step.before.versions[outcome]:
                met["physical_reuse"] += 1
            if outcome < max(step.held_before, default=-1):
                met["hole"] += 1
        elif name == "occupy":
            met["occupied"] += 1

    def fingerprint(self) -> Any:
        # Versions only grow; two classes, never and once or more allocated, keep the state space finite.
        return tuple(self.view.free), tuple(min(v, 1) for v in self.view.versions)

    @classmethod
    def simpler_scopes(cls, scope: SlotPoolScope) -> Iterable[Scope]:
        return (replace(scope, slots=n) for n in range(1, scope.slots))
