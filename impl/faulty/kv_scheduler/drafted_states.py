"""Faults of kv_scheduler with groups: states behind drafts, and the checkpoints that are copied from them."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.kv_scheduler.checkpointed import CheckpointedManager, CheckpointedStates
from kvlockstep.impl.kv_scheduler.committed import CommittedManager, CommittedStates
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.request import Request


@fault("sched-state-of-rejected-draft", law="state_soundness", seen=("mutant",))
class StateOfRejectedDraft(CheckpointedStates):
    """A request goes on from the state behind the last draft that it was fed, right or wrong."""

    class manager(CheckpointedManager):
        def _keep_state(self, g: int, request: Request) -> None:
            last = list(request.saves[g].values())[-1]
            super()._keep_state(g, request)
            request.states[g] = last


@fault("sched-state-saved-over-accepted", law="no_aliasing", seen=("mutant",))
class SavedOverAccepted(CheckpointedStates):
    """The state behind the last draft is saved over the one behind the first token."""

    class manager(CheckpointedManager):
        def _grow_in(self, g: int, request: Request, n: int) -> None:
            super()._grow_in(g, request, n)
            saves = request.saves[g]
            if len(saves) > 2:
                saves[max(saves)] = saves[min(saves)]


@fault("sched-checkpoint-over-running", law="state_soundness", seen=("vllm 0.33.0, impl/engines/vllm/known.toml",))
class CheckpointOverRunning(CheckpointedStates):
    """A checkpoint is copied over a later state, which the accepted drafts have reached."""

    class manager(CheckpointedManager):
        def state(self, rid: str, group: int) -> Step:
            step = super().state(rid, group)
            saved = dict(step.saves)
            return step._replace(checkpoints=[(end, saved.get(end + 1, block)) for end, block in step.checkpoints])


@fault("sched-checkpoint-of-last-draft", law="state_soundness", seen=("mutant",))
class CheckpointOfLastDraft(CheckpointedStates):
    """A checkpoint gets the state behind all accepted drafts, though the grid ends before that."""

    class manager(CheckpointedManager):
        def state(self, rid: str, group: int) -> Step:
            step = super().state(rid, group)
            first = min((end for end, _ in step.checkpoints), default=None)
            later = [position for position, _ in step.saves if first is not None and position >= first]
            return step._replace(checkpoints=[(p, block) for _, block in step.checkpoints for p in later])


@fault("sched-checkpoint-leaks", law="accounting", seen=("mutant",))
class CheckpointLeaks(CheckpointedStates):
    """The block of a checkpoint that the accepted drafts have not come to is never freed."""

    class manager(CheckpointedManager):
        def _keep_state(self, g: int, request: Request) -> None:
            run = self.run_of(g, request)
            if run.checkpoint is not None and request.computed < run.ends[0]:
                run.checkpoint = None
            super()._keep_state(g, request)


@fault("sched-state-column-not-taken", law="state_soundness", seen=("vllm#57605",))
class ColumnNotTaken(CheckpointedStates):
    """Behind the end of a block no block is taken for drafts: their state goes where an old row points."""

    class manager(CheckpointedManager):
        old: int | None = None

        def finish(self, rid: str) -> None:
            for g in range(len(self.groups)):
                self.old = next(iter(self.run_of(g, self._live[rid]).blocks), self.old)
            super().finish(rid)

        def state(self, rid: str, group: int) -> Step:
            step = super().state(rid, group)
            first = step.saves[0][0]
            if first % self.groups[group].block_size or self.old is None:
                return step
            return step._replace(saves=[(stop, block if stop == first else self.old) for stop, block in step.saves])


@fault("sched-checkpoint-over-published", law="state_soundness", seen=("mutant",))
class CheckpointOverPublished(CommittedStates):
    """A checkpoint is copied to the block of the one before, which can be hit under an earlier prefix."""

    class manager(CommittedManager):
        def reset(self) -> None:
            super().reset()
            self.before: dict[tuple[str, int], int] = {}

        def state(self, rid: str, group: int) -> Step:
            step = super().state(rid, group)
            if not step.checkpoints:
                return step
            end, block = step.checkpoints[0]
            return step._replace(checkpoints=[(end, self.before.setdefault((rid, group), block))])
