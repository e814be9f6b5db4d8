"""Faults of kv_scheduler: slots that are released late, without a tier."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.late_release import ReleasesLate
from kvlockstep.reference.kv_scheduler.contract import Batch


@fault("sched-limbo-stays", law="progress", seen=("mutant",))
class LimboStays(ReleasesLate):
    """The end of a copy of several blocks is never noticed, so what it has copied stays in limbo for good."""

    def _release(self) -> None:
        self._copies = [(self._batches + 1 if len(blocks) > 1 else batch, blocks) for batch, blocks in self._copies]
        super()._release()


@fault("sched-waits-for-limbo", law="progress", seen=("mutant",))
class WaitsForLimbo(ReleasesLate):
    """Nobody starts before every copy has ended, also where there is room beside them."""

    def schedule(self) -> Batch:
        most, self._most = self._most, self._most if all(at <= self._batches + 1 for at, _ in self._copies) else 0
        batch = super().schedule()
        self._most = most
        return batch
