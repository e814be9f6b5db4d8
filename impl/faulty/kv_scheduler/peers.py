"""Faults of kv_scheduler: a tier that another instance fills, and that loses what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.variants.kv_scheduler import OneUnit
from kvlockstep.impl.variants.peers import SendsBeforePreemption
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_scheduler.peered import PeeredScheduler, SharedTier
from kvlockstep.reference.kv_scheduler.scheduler import Job


@fault("sched-last-step-preempt", law="delivery", seen=("vllm#50297",))
class LastStepPreempt(SendsBeforePreemption):
    """A request that is preempted in its last step ends without a store of what that step has computed."""

    def _send_ahead(self, job: Job) -> None:
        pass


@fault("sched-lost-unit-kept", law="every_request_ends", seen=("mutant",))
class LostUnitKept(CachesInTier, PeeredScheduler):
    """A unit that could not be read stays in the index, so a request loads it again and never runs."""

    class tier_type(SharedTier):
        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            super().end_load(key, unit, True)


@fault("sched-offer-without-key", law="prefix_soundness", seen=("LMCache#2961",))
class OfferWithoutKey(PeeredScheduler):
    """A peer's chunk is found under its tokens alone, whatever adapter it was computed with."""

    def offer(self, tokens: list[int], extra_key: int | None) -> Sequence[int | None]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        keys = [self._kv._key(None, tokens[:end]) for end in ends]
        return [None if self._tier.knows(key) else self._tier.receive(key) for key in keys]


@fault("sched-offer-over-reader", law="source_stable", seen=("mutant",))
class OfferOverReader(CachesInTier, OneUnit, PeeredScheduler):
    """A peer's chunk takes the unit that was used least recently, though a load reads it."""

    durable = False

    class tier_type(SharedTier):
        def receive(self, key: Key) -> int | None:
            if not self._free and not self.knows(key) and self._cached:
                self._free.append(self._cached.pop(next(iter(self._cached))))
            return super().receive(key)
