"""kv_scheduler with recurrent states that stay in one block of their request, also with drafts.

The device keeps the states behind the drafts of a batch to itself. When it knows which are right, it commits the state
behind the last of them to the block of the request. Where a batch may come to an end of the grid, a checkpoint is made
beside that, as in checkpointed.py.
"""

from __future__ import annotations

from kvlockstep.impl.kv_scheduler.checkpointed import CheckpointedManager
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_scheduler.grouped import StatePool


class CommittedManager(CheckpointedManager):
    """The reference manager with one block for the state of each request, in which it stays."""

    def width(self, stops: range) -> int:
        return 1

    def state(self, rid: str, group: int) -> Step:
        step = super().state(rid, group)
        return step._replace(saves=[], commits=step.saves)

    def _saves(self, blocks: list[int], stops: range) -> dict[int, int]:
        return dict.fromkeys(stops, blocks[0])


class CommittedStates(StatePool):
    """Full attention, a window, and states that stay in one block."""

    manager = CommittedManager

    def _states(self, blocks: int) -> int:
        # What it has hit, its own, and a checkpoint.
        return max(3, blocks // 2)
