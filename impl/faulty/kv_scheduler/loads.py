"""Faults of kv_scheduler: what a load copies, and when others read it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_scheduler.caches_in_tier import CachesInTier
from kvlockstep.impl.faulty.tiers import UnpinnedTier
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants.kv_scheduler import OneUnit
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Tier
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job
from kvlockstep.reference.kv_scheduler.tiered import TieredScheduler


@fault("sched-hit-not-pinned", law="backed", seen=("vllm#42289",))
class HitNotPinned(CachesInTier, OneUnit):
    """The hit found at arrival is loaded at the start, whatever the units hold by then."""

    class tier_type(Tier):
        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            self._readers[unit] -= 1
            if not ok and self._cached.get(key) == unit:
                self._free.append(self._cached.pop(key))

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._promised: dict[str, dict[Key, int]] = {}

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        super().add(rid, tokens, extra_key, max_tokens, priority)
        self._promised[rid] = dict(self._tier._cached)

    def reset(self) -> None:
        super().reset()
        self._promised.clear()

    def _load(self, job: Job) -> bool:
        cached = self._tier._cached
        self._tier._cached = {**cached, **self._promised.get(job.rid, {})}
        loading = super()._load(job)
        self._tier._cached = cached
        return loading


@fault("sched-load-unpinned", law="source_stable", seen=("sglang#28468",))
class LoadUnpinned(CachesInTier, OneUnit):
    """A unit is evicted and stored to while a load still reads it."""

    tier_type = UnpinnedTier


@fault("sched-load-other-stream", law="stream_order", seen=("TensorRT-LLM#10060",))
class LoadOnOtherStream(CachesInTier, OverlapScheduler):
    """Loads run on a stream of their own and do not wait for the batch in flight."""

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        return OverlapScheduler.schedule(self, accepted)


@fault("sched-load-below-hit", law="load_before_read", seen=("LMCache#2206",))
class LoadBelowHit(TieredScheduler):
    """A load begins at the start of the prompt and overwrites the blocks that were hit in the pool."""

    ordered = True

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Hashable:
        if kind == "load":
            job = self._waiting[0]
            hit = self._kv._lookup(job.tokens, job.extra_key)
            keys = [self._kv._key_of[block] for block in hit]
            units = [self._tier.find(key) for key in keys]
            pairs = [*((u, b) for u, b in zip(units, hit, strict=True) if u is not None), *pairs]
        return super()._submit(kind, pairs, *rids, before=before)


@fault("sched-load-shifted", law="prefix_soundness", seen=("LMCache#4921",))
class LoadShifted(TieredScheduler):
    """The blocks of a load are indexed from the start of the prompt; the list begins behind the hit."""

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Hashable:
        if kind == "load" and len(pairs) > 1:
            job = self._waiting[0]
            first = len(self._kv._lookup(job.tokens, job.extra_key))
            blocks = [block for _, block in pairs]
            pairs = [(unit, blocks[(first + i) % len(blocks)]) for i, (unit, _) in enumerate(pairs)]
        return super()._submit(kind, pairs, *rids, before=before)


@fault("sched-load-exact-multiple", law="prefix_soundness", seen=("LMCache#5151",))
class LoadSkipsExactMultiple(TieredScheduler):
    """Of a prompt that fills its blocks exactly the last block of a load is not copied."""

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Hashable:
        if kind == "load" and len(pairs) > 1 and len(self._waiting[0].tokens) % self.block_size == 0:
            pairs = pairs[:-1]
        return super()._submit(kind, pairs, *rids, before=before)


class PublishesEarly(TieredScheduler):
    """Publishes the blocks of a load when it is submitted."""

    def _load(self, job: Job) -> bool:
        loading = super()._load(job)
        for load in self._loads.values() if loading else ():
            for key, block in zip(load.keys, load.blocks, strict=True):
                if key not in self._kv._cached:
                    self._kv._cached[key] = block
                    self._kv._key_of[block] = key
        return loading


@fault("sched-mask-without-copy", law="prefix_soundness", seen=("LMCache-Ascend#270",))
class MaskWithoutCopy(PublishesEarly):
    """A request starts on what is in the tier before any of it is copied."""

    def _start(self, job: Job, left: int) -> int | None:
        self._load(job)
        return self._kv.admit(job.rid, job.tokens, job.extra_key, left)


@fault("sched-hit-before-load", law="load_before_read", seen=("shape: publish too early",))
class HitBeforeLoad(PublishesEarly):
    """A request starts one step after its load was submitted, whether it has landed or not."""

    def _start(self, job: Job, left: int) -> int | None:
        if any(load.rid == job.rid for load in self._loads.values()):
            return self._kv.admit(job.rid, job.tokens, job.extra_key, left)
        return super()._start(job, left)


@fault("sched-load-negative-need", law="error_contract", seen=("vllm-ascend#14283",))
class NegativeNeed(TieredScheduler):
    """Blocks that are cached already are taken off twice on the load path, and the need becomes negative."""

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str, before: bool = False) -> Hashable:
        if kind == "load":
            job = self._waiting[0]
            need = len(pairs) - len(self._kv._lookup(job.tokens, job.extra_key))
            if need < 0:
                raise AssertionError(f"need is {need}")
        return super()._submit(kind, pairs, *rids, before=before)


@fault("sched-target-available", law="accounting", seen=("shape: accounting",))
class TargetAvailable(TieredScheduler):
    """Blocks that a load is filling are counted as available."""

    def avail(self) -> int:
        filled = sum(len(load.blocks) for load in self._loads.values())
        return super().avail() + filled * self.block_size
