"""Faults of kv_scheduler: transfers between the pool and a tier."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.tiers import FreesTwice, KeepsReaders, UnpinnedTier
from kvlockstep.impl.kv_scheduler.fenced import FencedScheduler
from kvlockstep.impl.kv_scheduler.overlap import OverlapScheduler
from kvlockstep.impl.variants.kv_scheduler import OneUnit, ResetsInFlight
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Store, Tier
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler


class CachesInTier(TieredScheduler):
    """The pool keeps nothing that no request holds, so that what is hit comes from the tier."""

    def add(self, rid: str, tokens: list[int], extra_key: int | None, max_tokens: int, priority: int) -> None:
        self._kv.evict_all()
        super().add(rid, tokens, extra_key, max_tokens, priority)

    def poll(self) -> None:
        self._kv.evict_all()
        super().poll()


@fault("sched-store-unfenced", law="transfer_isolation", seen=("ATOM#2146",))
class StoreUnfenced(FencedScheduler):
    """Blocks that are freed under a store are written without waiting for it."""

    def waits(self) -> Collection[Hashable]:
        return []


@fault("sched-store-at-decision", law="transfer_isolation", seen=("vllm#45704",))
class StoreAtDecision(TieredScheduler):
    """A store is submitted when it is decided, in front of the batch that computes what it reads."""

    def _commit(self, job: Job, n: int) -> None:
        KVScheduler._commit(self, job, n)

    def schedule(self) -> Batch:
        batch = super().schedule()
        for item in batch.items:
            request = self._kv._live[item.rid]
            for i in range(item.start // self.block_size, (item.start + item.n - item.drafts) // self.block_size):
                key = self._kv._key(request.extra_key, request.tokens[: (i + 1) * self.block_size])
                if not self._tier.knows(key):
                    self._store(key, request.table[i])
        self._submitted = [transfer._replace(before=True) for transfer in self._submitted]
        return batch


@fault("sched-fence-decodes-only", law="transfer_isolation", seen=("vllm#46951",))
class FencesDecodesOnly(FencedScheduler):
    """Only blocks that a running request takes are fenced, not those of an admission."""

    def schedule(self) -> Batch:
        running = {job.rid for job in self._running}
        batch = super().schedule()
        slots = [slot for item in batch.items if item.rid in running for slot in item.slots[item.start :]]
        self._fence = self._stores_of(self._written({slot // self.block_size for slot in slots}))
        return batch


@fault("sched-fence-not-loads", law="source_stable", seen=("vllm#46951",))
class FencesNoLoads(FencedScheduler):
    """A load fills a block that a store still reads, since only the blocks of batches are fenced."""

    def _written(self, blocks: set[int]) -> set[int]:
        return blocks


@fault("sched-fence-by-key", law="transfer_isolation", seen=("TensorRT-LLM#9056",))
class FencesByKey(FencedScheduler):
    """Stores are found by the key of their block, so a block that was evicted meanwhile has no fence."""

    def _stores_of(self, blocks: Collection[int]) -> list[Hashable]:
        ids = super()._stores_of(blocks)
        return [id for id in ids if self._kv._key_of.get(self._stores[id].block) == self._stores[id].key]


@fault("sched-abort-frees-target", law="target_owned", seen=("vllm#32255",))
class AbortFreesTarget(CachesInTier):
    """An abort frees the blocks that a running load still writes."""

    def abort(self, rid: str) -> None:
        for id, load in list(self._loads.items()):
            if load.rid == rid:
                self._end_load(self._loads.pop(id), False)
        super().abort(rid)

    def poll(self) -> None:
        known = {*self._stores, *self._loads}
        self._completed = [(id, ok) for id, ok in self._completed if id in known]
        super().poll()


@fault("sched-abort-misses-end", law="progress", seen=("vllm#32255",))
class AbortMissesEnd(CachesInTier):
    """An abort waits for the end of a load that has already ended, and its blocks are never released."""

    def abort(self, rid: str) -> None:
        self._completed = [(id, ok) for id, ok in self._completed if id in self._stores or self._loads[id].rid != rid]
        super().abort(rid)


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


@fault("sched-store-takes-target", law="target_owned", seen=("sglang#28468",))
class StoreTakesTarget(OneUnit):
    """A store that finds no unit takes the one that another store is writing."""

    class tier_type(Tier):
        def begin_store(self, key: Key) -> int | None:
            unit = super().begin_store(key)
            if unit is None and self._storing:
                unit = self._storing[key] = next(iter(self._storing.values()))
            return unit

        def end_store(self, key: Key, ok: bool) -> None:
            unit = self._storing[key]
            super().end_store(key, ok)
            if unit in self._storing.values():
                self._cached.pop(key, None)
                self._free = [free for free in self._free if free != unit]


@fault("sched-failed-store-cached", law="failure_visible", seen=("sglang#27108",))
class FailedStoreCached(CachesInTier):
    """A store that failed counts as done."""

    def _end_store(self, store: Store, ok: bool) -> None:
        super()._end_store(store, True)


@fault("sched-torn-load-cached", law="failure_visible", seen=("vllm#7577",))
class TornLoadCached(CachesInTier):
    """A load that failed on its way counts in full."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, True)


@fault("sched-load-never-done", law="progress", seen=("dynamo#3730",))
class LoadNeverDone(TieredScheduler):
    """The end of a load of several blocks is never noticed, so its request waits for good."""

    def poll(self) -> None:
        self._completed = [
            (id, ok) for id, ok in self._completed if id in self._stores or len(self._loads[id].units) == 1
        ]
        super().poll()


@fault("sched-store-never-done", law="progress", seen=("LMCache#3884",))
class StoreNeverDone(TieredScheduler):
    """The end of a store is only noticed while a request runs; of the others the blocks stay pinned."""

    def poll(self) -> None:
        if not self._running:
            self._completed = [(id, ok) for id, ok in self._completed if id in self._loads]
        super().poll()


@fault("sched-unit-freed-twice", law="tier_accounting", seen=("LMCache#2559",))
class UnitFreedTwice(TieredScheduler):
    """The unit of a store that failed is given back twice, by the error path and by the clean-up."""

    tier_type = FreesTwice


@fault("sched-unit-lost", law="tier_accounting", seen=("sglang#13501",))
class UnitLost(CachesInTier):
    """The unit of a page that could not be loaded is forgotten with its key, and is never free again."""

    class tier_type(Tier):
        def end_load(self, key: Key, unit: int, ok: bool) -> None:
            self._readers[unit] -= 1
            if not ok:
                self._cached.pop(key, None)


@fault("sched-reader-left", law="quiescence", seen=("shape: refcount-leak",))
class ReaderLeft(CachesInTier):
    """A load that failed stays a reader of its units, which are never evicted again."""

    tier_type = KeepsReaders


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


@fault("sched-promotes-again", law="transfer_progress", seen=("vllm#49902",))
class PromotesAgain(TieredScheduler):
    """Loaded blocks are released before their request is looked up again, so they are loaded forever."""

    def _end_load(self, load: Load, ok: bool) -> None:
        for key, unit in zip(load.keys, load.units, strict=True):
            self._tier.end_load(key, unit, ok)
        for block in (*load.hit, *load.blocks):
            self._kv._drop(block)


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


@fault("sched-failed-load-runs", law="one_queue", seen=("xinfer#405",))
class FailedLoadRuns(CachesInTier):
    """A request whose load failed is listed as running although it waits."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._failed: set[str] = set()

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        if not ok:
            self._failed.add(load.rid)

    def queues(self) -> Mapping[str, Sequence[str]]:
        queues = dict(super().queues())
        failed = [rid for rid in queues["waiting"] if rid in self._failed]
        return {**queues, "running": [*queues["running"], *failed]}

    def schedule(self) -> Batch:
        self._failed.clear()
        return super().schedule()


@fault("sched-target-available", law="accounting", seen=("shape: accounting",))
class TargetAvailable(TieredScheduler):
    """Blocks that a load is filling are counted as available."""

    def avail(self) -> int:
        filled = sum(len(load.blocks) for load in self._loads.values())
        return super().avail() + filled * self.block_size


@fault("sched-ended-store-leaks", law="accounting", seen=("LMCache#3884",))
class EndedStoreLeaks(TieredScheduler):
    """A store whose request has ended meanwhile does not give its block back."""

    def _end_store(self, store: Store, ok: bool) -> None:
        if any(store.block in request.table for request in self._kv._live.values()):
            super()._end_store(store, ok)
        else:
            self._tier.end_store(store.key, ok)


@fault("sched-ends-swapped", law="target_owned", seen=("shape: order of completion",))
class EndsSwapped(TieredScheduler):
    """Ends of stores are taken for those of the oldest stores, whichever have ended."""

    def complete(self, id: Hashable, ok: bool) -> None:
        told = {id for id, _ in self._completed}
        oldest = next((store for store in self._stores if store not in told), id)
        super().complete(oldest if id in self._stores else id, ok)


@fault("sched-counts-wrong-level", law="accounting", seen=("TensorRT-LLM#12834",))
class CountsWrongLevel(TieredScheduler):
    """The pool counts a block by its level after the load, which has changed, and so calls it free."""

    def __init__(self, blocks: int, block_size: int, budget: int, running: int) -> None:
        super().__init__(blocks, block_size, budget, running)
        self._miscounted = 0

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        self._miscounted += len(load.blocks) if ok else 0

    def avail(self) -> int:
        return super().avail() + self._miscounted * self.block_size
