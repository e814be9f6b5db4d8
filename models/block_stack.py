"""Model of block_stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Goal, Scope
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, sample
from kvlockstep.models.core.operations import Ints
from kvlockstep.models.core.picture import CALLER, FREE, HELD, UNKNOWN, Cell, Picture, Table, numbers
from kvlockstep.models.core.whole import whole, wholes_at_once
from kvlockstep.properties.block_stack import LAWS, Held, View
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.block_stack import BlockStack

MOST_IN_ONE_RELEASE = 8


@dataclass(frozen=True)
class BlockStackScope(Scope):
    """A stack of `blocks` blocks."""

    blocks: int


class BlockStackModel(LockstepModel[BlockStackScope]):
    contract = "block_stack"
    laws = LAWS
    reference_type = BlockStack
    scope_type = BlockStackScope
    operations = {"acquire": {"n": int}, "release": {"blocks": Ints}, "begin_capture": {}, "end_capture": {}}
    scopes = tuple(BlockStackScope(n) for n in (1, 2, 3, 5, 8, 2, 3, 4, 6, 40))
    small_scopes = tuple(BlockStackScope(n) for n in range(5))
    goals = (
        Goal("exhausted", "an acquire asks for more blocks than are free"),
        Goal("all_taken", "an acquire takes the last free block"),
        Goal("several", "an acquire takes several blocks at once"),
        Goal("physical_reuse", "a released block is acquired again"),
        Goal("shuffled", "blocks come back in another order than they were taken"),
        Goal("nothing", "no block is acquired or released"),
        Goal("negative", "a negative number of blocks is asked for"),
        Goal("double_free", "a free block is released"),
        Goal("repeated", "a held block is given twice in one release"),
        Goal("foreign", "a block that is not in the stack is released"),
        Goal("partly_bad", "a release names a held block before one that is not held"),
        Goal("in_capture", "an acquire or a release is tried during a capture"),
        Goal("capture_in_capture", "begin_capture is called during a capture"),
        Goal("no_capture", "end_capture is called outside of a capture"),
    )

    def factory_arguments(self, scope: BlockStackScope) -> dict[str, Any]:
        return scope.to_json()

    @command(3)
    def acquire(self, pick: Pick) -> Op:
        """Take a number of blocks, perhaps more than there are."""
        return Op("acquire", n=pick(range(-1, min(self.scope.blocks, MOST_IN_ONE_RELEASE) + 2)))

    @command(3)
    def release(self, pick: Pick) -> Op:
        """Give some of the held blocks back, in any order."""
        return Op("release", blocks=self._some_held(pick))

    @command(1)
    def bad_release(self, pick: Pick) -> Op:
        """Give back some held blocks, and with them one that is foreign, free, or given already."""
        good = self._some_held(pick)
        bad = pick([-1, self.scope.blocks, *self.view.free[-1:], *good[:1]])
        return Op("release", blocks=pick(([*good, bad], [bad, *good])) if good else [bad])

    @command(1)
    def begin_capture(self, pick: Pick) -> Op:
        """A graph capture starts."""
        if not self.held.capturing:
            self._seldom(pick)
        return Op("begin_capture")

    @command(2)
    def end_capture(self, pick: Pick) -> Op:
        """A graph capture ends."""
        if not self.held.capturing:
            self._seldom(pick)
        return Op("end_capture")

    def _seldom(self, pick: Pick) -> None:
        if pick((True, False, False, False)):
            return
        raise NotEnabled

    def _some_held(self, pick: Pick) -> list[int]:
        held = sorted(self.held.blocks)
        return sample(pick, held, pick(range(min(len(held), MOST_IN_ONE_RELEASE) + 1)))

    def perform(self, system: Any, op: Op) -> Any:
        answer = getattr(system, op.name)(**op.args)
        return None if answer is None else wholes_at_once(answer)

    def observe(self, system: Any) -> View:
        return View(wholes_at_once(system.free_blocks()), whole(system.num_free))

    def draw(self, view: View) -> Picture:
        cells = {
            b: Cell(HELD, (CALLER,), 1) if b in self.held.blocks else Cell(UNKNOWN) for b in range(self.scope.blocks)
        }
        cells |= {b: Cell(FREE, cells[b].holders if b in cells else (), 0) for b in view.free}
        rows = (("free, bottom first", numbers(view.free)), ("num_free", str(view.num_free)))
        return Picture(
            "block", cells, (Table("stack", ("what", "value"), (*rows, ("capturing", str(self.held.capturing)))),)
        )

    def nothing_held(self) -> Held:
        return Held(frozenset(), frozenset(), False, self.scope.blocks)

    def holds_after(self, held: Held, op: Op, outcome: Any) -> Held:
        if isinstance(outcome, Refused):
            return held
        match op.name:
            case "acquire":
                return held._replace(blocks=held.blocks | set(outcome))
            case "release":
                blocks = op.args["blocks"]
                return held._replace(blocks=held.blocks.difference(blocks), returned=held.returned.union(blocks))
        return held._replace(capturing=op.name == "begin_capture")

    def notice(self, step: Step[View, Held]) -> None:
        met, name = self.goals_met, step.op.name
        match step.outcome:
            case Refused("CaptureActive"):
                met["capture_in_capture" if name == "begin_capture" else "in_capture"] += 1
            case Refused("OutOfSlots"):
                met["exhausted"] += 1
            case Refused("InvalidArgument"):
                met["negative" if name == "acquire" else "no_capture"] += 1
            case Refused():
                self._notice_bad_release(step)
            case list(taken) if name == "acquire":
                met["nothing"] += not taken
                met["several"] += len(taken) > 1
                met["all_taken"] += bool(taken) and not step.after.free
                met["physical_reuse"] += not step.held_before.returned.isdisjoint(taken)
            case _ if name == "release":
                blocks = step.op.args["blocks"]
                met["nothing"] += not blocks
                met["shuffled"] += blocks != sorted(blocks)

    def _notice_bad_release(self, step: Step[View, Held]) -> None:
        blocks, held = step.op.args["blocks"], step.held_before.blocks
        self.goals_met["foreign"] += any(not 0 <= b < self.scope.blocks for b in blocks)
        self.goals_met["double_free"] += any(b in step.before.free for b in blocks)
        self.goals_met["repeated"] += any(b in held and b in blocks[:i] for i, b in enumerate(blocks))
        self.goals_met["partly_bad"] += blocks[0] in held

    def fingerprint(self) -> Any:
        return tuple(self.view.free), self.held.capturing

    @classmethod
    def simpler_scopes(cls, scope: BlockStackScope) -> Iterable[Scope]:
        return (replace(scope, blocks=n) for n in range(1, scope.blocks))
