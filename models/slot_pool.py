"""What can happen to a slot_pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kvlockstep.models.model import Goal, LockstepModel, Scope
from kvlockstep.models.op import Op, Pick, command
from kvlockstep.properties import slot_pool as laws
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.slot_pool import SlotPool


@dataclass(frozen=True)
class SlotPoolScope(Scope):
    slots: int


class View(NamedTuple):
    free: list[bool]
    versions: list[int]
    free_count: int


class SlotPoolModel(LockstepModel[SlotPoolScope]):
    contract = "slot_pool"
    laws = laws.LAWS
    reference_type = SlotPool
    scope_type = SlotPoolScope
    scopes = tuple(SlotPoolScope(n) for n in (1, 2, 3, 5, 8, 1, 2, 3, 4, 5, 6, 66))
    small_scopes = tuple(SlotPoolScope(n) for n in range(5))
    goals = (
        Goal("exhausted", "an allocation is refused since every slot is held"),
        Goal("physical_reuse", "a slot is allocated again after a free"),
        Goal("occupied", "a free slot is occupied by name, its version kept"),
        Goal("double_free", "a free slot is freed"),
        Goal("occupy_held", "a held slot is asked for by name"),
        Goal("foreign", "a slot that is not of the pool is named"),
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
        return Op("free", slot=pick(self._slots()))

    @command(1)
    def occupy(self, pick: Pick) -> Op:
        """Take one slot by name, free or not."""
        return Op("occupy", slot=pick(self._slots()))

    def _slots(self) -> range:
        return range(-1, self.scope.slots + 1)

    def perform(self, system: Any, op: Op) -> Any:
        return getattr(system, op.name)(**op.args)

    def observe(self, system: Any) -> View:
        slots = range(self.scope.slots)
        return View([system.is_free(s) for s in slots], [system.version(s) for s in slots], system.free_count)

    def nothing_held(self) -> frozenset[int]:
        return frozenset()

    def holds_after(self, held: frozenset[int], op: Op, outcome: Any) -> frozenset[int]:
        if isinstance(outcome, Refused):
            return held
        if op.name == "free":
            return held - {op.args["slot"]}
        return held | {outcome if op.name == "alloc" else op.args["slot"]}

    def notice(self, step: Step) -> None:
        refused = isinstance(step.outcome, Refused)
        match step.op.name:
            case "alloc" if refused:
                self.reach["exhausted"] += 1
            case "alloc":
                self.reach["physical_reuse"] += step.before.versions[step.outcome] > 0
                self.reach["hole"] += any(slot > step.outcome for slot in step.held_before)
            case "occupy" if not refused:
                self.reach["occupied"] += 1
            case name if step.outcome == Refused("UnknownSlot"):
                self.reach["foreign"] += 1
            case name:
                self.reach["double_free" if name == "free" else "occupy_held"] += refused

    def fingerprint(self) -> Any:
        # Versions only grow; two classes, never and once or more allocated, keep the state space finite.
        return tuple(self.view.free), tuple(min(v, 1) for v in self.view.versions)

    @classmethod
    def simpler_scopes(cls, scope: SlotPoolScope) -> Iterable[Scope]:
        return (replace(scope, slots=n) for n in range(1, scope.slots))
