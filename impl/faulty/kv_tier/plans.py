"""Faults in plans: their units, their references, how they end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, LoadPlan, StorePlan
from kvlockstep.reference.kv_tier.tier import Chunk, KVTier


@fault("tier-retrieve-keeps-reference", law="quiescence", seen=("LMCache#3884",))
class RetrieveKeepsReference(KVTier):
    """A load leaves its own reference on each chunk, which is never evictable again."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        super().complete(plan, ok)
        if isinstance(done, LoadPlan):
            self._using.update(done.units.values())


@fault("tier-released-twice", law="idempotent", seen=("LMCache#2559",))
class ReleasedTwice(KVTier):
    """The clean-up drops the references of a plan that its completion has dropped already."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._ended: dict[Hashable, list[int]] = {}

    def complete(self, plan: Hashable, ok: bool) -> None:
        if plan in self._plans:
            self._ended[plan] = list(self._plans[plan].units.values())
            super().complete(plan, ok)
        else:
            self._using.subtract(self._ended.get(plan, ()))


@fault("tier-unpinned-last", law="tier_accounting", seen=("LMCache#1130",))
class UnpinnedLast(KVTier):
    """A load that ends while its chunk is pinned leaves its reference, and unpinning does not drop it."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        super().complete(plan, ok)
        if isinstance(done, LoadPlan):
            pinned = {key for _, key in self._pins}
            self._using.update(unit for key, unit in done.units.items() if key in pinned)


@fault("tier-two-copies", law="plan_exact", seen=("mutant",))
class TwoCopies(KVTier):
    """A chunk that is being stored gets a second unit, if it is offered again."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        for key in keys:
            if key in self._chunks and not self._chunks[key].stored and self._free:
                del self._chunks[key]
        return super().store(keys, owner)


@fault("tier-one-unit-twice", law="no_aliasing", seen=("mutant",))
class OneUnitTwice(KVTier):
    """The last two chunks of a store get one unit, and the other one stays free."""

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        plan = super().store(keys, owner)
        if plan is None or len(plan.units) < 2:
            return plan
        *_, first, last = plan.units
        self._free.append(plan.units[last])
        self._using[plan.units[last]] -= 1
        self._chunks[last].unit = plan.units[first]
        self._plans[plan.id] = plan = plan._replace(units={**plan.units, last: plan.units[first]})
        return plan


@fault("tier-unit-freed-twice", law="no_double_free", seen=("LMCache#987",))
class FreedTwice(KVTier):
    """A store that fails frees its units, and so does the holder of its buffers."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        super().complete(plan, ok)
        if isinstance(done, StorePlan) and not ok:
            self._free += done.units.values()

    def avail(self) -> int:
        return super().avail() - len(self._free) + len(set(self._free))


@fault("tier-failure-leaks", law="tier_accounting", seen=("mutant",))
class FailureLeaks(KVTier):
    """A store that fails gives back all its units but the last."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        super().complete(plan, ok)
        if isinstance(done, StorePlan) and not ok and done.units:
            self._free.pop()


@fault("tier-failed-store-counts", law="tier_accounting", seen=("sglang#27108",))
class FailedStoreCounts(KVTier):
    """A failed store counts as done."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        super().complete(plan, True)


@fault("tier-failed-store-hit", law="failure_visible", seen=("vllm#7577",))
class FailedStoreHit(KVTier):
    """A failed store gives its units back, and its keys stay in the index."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._index: set[Key] = set()

    def _settle(self, key: Key, chunk: Chunk, ok: bool) -> None:
        super()._settle(key, chunk, ok)
        self._index.add(key)

    def _evict(self, key: Key) -> None:
        super()._evict(key)
        self._index.discard(key)

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        answer = super().lookup(key, owner)
        return HIT if answer == MISS and key in self._index else answer

    def reset(self) -> None:
        super().reset()
        self._index.clear()


@fault("tier-avail-counts-loads", law="tier_accounting", seen=("mutant",))
class AvailCountsLoads(KVTier):
    """avail counts chunks that a load is reading."""

    def avail(self) -> int:
        pinned = {key for _, key in self._pins}
        return len(self._free) + sum(chunk.stored and key not in pinned for key, chunk in self._chunks.items())
