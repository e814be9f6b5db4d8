"""Faults of kv_scheduler: a block of the pool and what is only left of its descendants, in the tier."""

from __future__ import annotations

from collections.abc import Callable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Tier
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


class RenamedTier(Tier):
    """A tier that finds blocks by another name than their key."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.name: Callable[[Key], Key] = lambda key: key
        self._named: dict[Key, Key] = {}

    def knows(self, key: Key) -> bool:
        return super().knows(self.name(key))

    def find(self, key: Key) -> int | None:
        return super().find(self.name(key))

    def begin_store(self, key: Key) -> int | None:
        self._named[key] = self.name(key)
        return super().begin_store(self._named[key])

    def end_store(self, key: Key, ok: bool) -> None:
        super().end_store(self._named.pop(key), ok)

    def begin_load(self, key: Key) -> None:
        super().begin_load(self.name(key))

    def end_load(self, key: Key, unit: int, ok: bool) -> None:
        super().end_load(self.name(key), unit, ok)


@fault("sched-child-left-below", law="prefix_soundness", seen=("TensorRT-LLM#3735",))
class ChildLeftBelow(TieredScheduler):
    """A block is evicted though its child is left in the tier, where it is found by the block's number."""

    _tier: RenamedTier
    tier_type = RenamedTier

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._tier.name = self._by_parent

    def reset(self) -> None:
        super().reset()
        self._tier.name = self._by_parent

    def _by_parent(self, key: Key) -> Key:
        extra_key, tokens = key
        parent = self._kv._cached.get((extra_key, tokens[: -self.block_size]))
        return key if parent is None else (-1, (parent, *tokens[-self.block_size :]))
