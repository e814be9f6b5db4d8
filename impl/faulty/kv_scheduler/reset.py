"""Faults of kv_scheduler: a reset while transfers run."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.kv_scheduler import ResetsInFlight
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


@fault("sched-reset-keeps-tier", law="backed", seen=("vllm#57727", "sglang#26792"))
class ResetKeepsTier(TieredScheduler):
    """A reset clears the pool and leaves the index of the tier."""

    def reset(self) -> None:
        tier = self._tier
        super().reset()
        self._tier = tier


@fault("sched-reset-reuses-target", law="target_owned", seen=("mutant",))
class ResetReusesTarget(TieredScheduler):
    """After a reset the units of stores that are still running are handed out again."""

    reset_in_flight = True

    def reset(self) -> None:
        super().reset()
        self._stores.clear()
        self._loads.clear()

    def poll(self) -> None:
        known = {*self._stores, *self._loads}
        self._completed = [(id, ok) for id, ok in self._completed if id in known]
        super().poll()


@fault("sched-reset-frees-again", law="no_double_free", seen=("sglang#26009",))
class ResetFreesAgain(ResetsInFlight):
    """A block that waits for its store is freed by a reset, and again when the store ends."""

    def _withhold(self, blocks: list[int]) -> None:
        super()._withhold([block for block in blocks if block not in self._sources])

    def reset(self) -> None:
        self._sources = {store.block for store in self._stores.values()}
        super().reset()

    def _end_forgotten(self, blocks: list[int], units: list[int]) -> None:
        super()._end_forgotten([block for block in blocks if block not in self._sources], units)
        self._kv._free += [block for block in blocks if block in self._sources]
