"""Faults of kv_manager: loads inside admission, and stores that outlive their requests."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.tiers import FreesTwice, KeepsReaders, PinsLate, UnpinnedTier
from kvlockstep.impl.kv_manager.fenced import FencedManager
from kvlockstep.impl.variants.loading import AnnouncesTiers, AnswersAtOnce, WritesBackIntoFew
from kvlockstep.impl.variants.tiers import HearsAtOnce
from kvlockstep.reference.kv.transfers import Loading
from kvlockstep.reference.kv_manager.announcer import Announcer
from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Load, Store
from kvlockstep.reference.kv_manager.tiered import TieredManager


class ChildrenFirst(Announcer):
    """Announces what comes back in the wrong order."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._ever: set[Key] = set()

    def in_order(self, keys: list[Key]) -> list[Key]:
        back = [key for key in keys if key in self._ever]
        self._ever.update(keys)
        return [*reversed(super().in_order(back)), *super().in_order([key for key in keys if key not in back])]


class OneUnit(TieredManager):
    """A tier of one unit, for which transfers compete."""

    def _tier_size(self, blocks: int) -> int:
        return 1


class ForgetsPool(TieredManager):
    """The pool keeps nothing that no request holds, so that what is hit comes from the tier."""

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self.evict_all()

    def poll(self) -> None:
        super().poll()
        self.evict_all()


class CachesInTier(HearsAtOnce, ForgetsPool):
    """Hears of the end of a transfer at once, which makes traces short."""


@fault("kv-load-abort-frees-target", law="target_owned", seen=("vllm#32255",))
class AbortFreesTarget(CachesInTier):
    """An abort frees the blocks that a running load still writes."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        for id, load in list(self._loads.items()):
            if load.request is request:
                self._end_load(self._loads.pop(id), False)
        super().finish(rid)

    def poll(self) -> None:
        known = {*self._stores, *self._loads}
        self._completed = [(id, ok) for id, ok in self._completed if id in known]
        super().poll()


@fault("kv-load-abort-misses-end", law="quiescence", seen=("vllm#32255",))
class AbortMissesEnd(ForgetsPool):
    """An abort waits for the end of a load that has already ended, and its blocks are never released."""

    def abort(self, rid: str) -> None:
        mine = {id for id, load in self._loads.items() if load.request is self._live[rid]}
        self._completed = [(id, ok) for id, ok in self._completed if id not in mine]
        super().abort(rid)


@fault("kv-load-target-available", law="accounting", seen=("shape: accounting",))
class TargetAvailable(CachesInTier):
    """The blocks that a load still fills are available as soon as its request is gone."""

    def avail(self) -> int:
        return super().avail() + self.limbo()


@fault("kv-load-unpinned", law="source_stable", seen=("sglang#28468",))
class LoadUnpinned(CachesInTier, OneUnit):
    """A unit is evicted and stored to while a load still reads it."""

    tier_type = UnpinnedTier


@fault("kv-load-failed-store-cached", law="failure_visible", seen=("sglang#27108",))
class FailedStoreCached(CachesInTier):
    """A store that failed counts as done, and the only other copy is dropped."""

    def _end_store(self, store: Store, ok: bool) -> None:
        super()._end_store(store, True)


@fault("kv-load-torn-counts", law="failure_visible", seen=("vllm#7577",))
class TornLoadCounts(CachesInTier):
    """A load that failed on its way counts in full."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, True)


@fault("kv-load-never-done", law="load_ends", seen=("dynamo#3730",))
class LoadNeverDone(CachesInTier):
    """The end of a load of several blocks is never noticed by whoever waits for it."""

    def ready(self, rid: str) -> int | None:
        return None if rid in self._several else super().ready(rid)

    def reset(self) -> None:
        super().reset()
        self._several: set[str] = set()

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        if len(blocks) > 1:
            self._several.add(rid)


@fault("kv-load-below-hit", law="load_before_read", seen=("LMCache#2206",))
class LoadBelowHit(CachesInTier):
    """A load begins at the start of the prompt and overwrites the blocks that were hit in the pool."""

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        hit = self._live[rid].table[: self._live[rid].table.index(blocks[0])]
        units = [self._tier.find(self._key_of[block]) for block in hit]
        also = [(unit, block) for unit, block in zip(units, hit, strict=True) if unit is not None]
        self._submitted[-1] = self._submitted[-1]._replace(pairs=[*also, *self._submitted[-1].pairs])


@fault("kv-load-shifted", law="prefix_soundness", seen=("LMCache#4921",))
class LoadShifted(CachesInTier):
    """The blocks of a load are indexed from the start of the prompt; the list begins behind the hit."""

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        first = self._live[rid].table.index(blocks[0])
        pairs = [(unit, blocks[(first + i) % len(blocks)]) for i, unit in enumerate(found.values())]
        self._submitted[-1] = self._submitted[-1]._replace(pairs=pairs)


@fault("kv-load-exact-multiple", law="prefix_soundness", seen=("LMCache#5151",))
class LoadSkipsExactMultiple(CachesInTier):
    """Of a prompt that fills its blocks exactly the last block of a load is not copied."""

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        super()._load(rid, found, blocks)
        if len(blocks) > 1 and len(self._live[rid].tokens) % self.block_size == 0:
            self._submitted[-1] = self._submitted[-1]._replace(pairs=list(self._submitted[-1].pairs)[:-1])


class AnswersFromTier(AnswersAtOnce, CachesInTier):
    """Answers an admission that loads as if everything were there."""


@fault("kv-load-mask-without-copy", law="prefix_soundness", seen=("LMCache-Ascend#270",))
class MaskWithoutCopy(AnswersFromTier):
    """The hit is answered, and the copy is never made."""

    def _pin(self, found: dict[Key, int]) -> None:
        pass

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        pass


@fault("kv-load-hit-before-load", law="load_before_read", seen=("shape: publish too early",))
class HitBeforeLoad(AnswersFromTier):
    """A request starts in the step in which its load was submitted, and the worker does not wait for it."""


@fault("kv-load-negative-need", law="error_contract", seen=("vllm-ascend#14283",))
class NegativeNeed(CachesInTier):
    """Blocks that are cached already are taken off twice on the load path, and the need becomes negative."""

    def _load(self, rid: str, found: dict[Key, int], blocks: list[int]) -> None:
        need = len(blocks) - self._live[rid].table.index(blocks[0])
        if need < 0:
            raise AssertionError(f"need is {need}")
        super()._load(rid, found, blocks)


@fault("kv-load-promotes-again", law="transfer_progress", seen=("vllm#49902",))
class PromotesAgain(CachesInTier):
    """Loaded blocks are not published before their request is looked up again, so they are loaded forever."""

    def ready(self, rid: str) -> int | None:
        request, ready = self._live[rid], super().ready(rid)
        first = request.computed // self.block_size
        found = {} if ready is None else self._in_tier(request.tokens, request.extra_key, first)
        if not found:
            return ready
        self._pin(found)
        self._load(rid, found, request.table[first : first + len(found)])
        return None

    def _end_load(self, load: Load, ok: bool) -> None:
        for key, unit in zip(load.keys, load.units, strict=True):
            self._tier.end_load(key, unit, ok)
        for block in load.blocks:
            self._drop(block)


@fault("kv-load-ready-less", law="promise_kept", seen=("shape: off by one",))
class ReadyWithLess(CachesInTier):
    """The last block of a load of several is not counted when the load has ended."""

    def _end_load(self, load: Load, ok: bool) -> None:
        super()._end_load(load, ok)
        load.request.computed -= self.block_size * (ok and len(load.blocks) > 1)


@fault("kv-load-by-name", law="load_before_read", seen=("shape: keyed by request id",))
class LoadsByName(CachesInTier):
    """A load's end is kept by request id, so a preempted request is ready by its earlier load."""

    def reset(self) -> None:
        super().reset()
        self._rids: dict[Hashable, str] = {}
        self._ended: set[str] = set()
        self._promised: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Any:
        said = super().admit(rid, tokens, extra_key, n)
        if isinstance(said, Loading):
            self._rids[next(reversed(self._loads))] = rid
            self._promised[rid] = said.cached
        return said

    def poll(self) -> None:
        self._ended |= {self._rids[id] for id, ok in self._completed if ok and id in self._rids}
        super().poll()

    def ready(self, rid: str) -> int | None:
        if rid in self._ended:
            self._ended.discard(rid)
            self._live[rid].computed = self._promised[rid]
            return self._promised[rid]
        return super().ready(rid)


@fault("kv-load-reset-keeps-tier", law="backed", seen=("vllm#57727", "sglang#26792"))
class ResetKeepsTier(CachesInTier):
    """A reset clears the pool and leaves the index of the tier."""

    def __init__(self, blocks: int, block_size: int) -> None:
        super().__init__(blocks, block_size)
        self._kept = self._tier

    def reset(self) -> None:
        super().reset()
        self._tier = getattr(self, "_kept", self._tier)


@fault("kv-load-reset-reuses-target", law="target_owned", seen=("mutant",))
class ResetReusesTarget(TieredManager):
    """After a reset the units of stores that are still running are handed out again."""

    reset_in_flight = True

    def poll(self) -> None:
        known = {*self._stores, *self._loads}
        self._completed = [(id, ok) for id, ok in self._completed if id in known]
        super().poll()


@fault("kv-load-unit-freed-twice", law="tier_accounting", seen=("LMCache#2559",))
class UnitFreedTwice(TieredManager):
    """The unit of a store that failed is given back twice, by the error path and by the clean-up."""

    tier_type = FreesTwice


@fault("kv-load-reader-left", law="quiescence", seen=("shape: refcount-leak",))
class ReaderLeft(CachesInTier):
    """A load that failed stays a reader of its units, which are never evicted again."""

    tier_type = KeepsReaders


@fault("kv-load-store-unfenced", law="transfer_isolation", seen=("ATOM#2146",))
class StoreUnfenced(FencedManager):
    """Blocks that are freed under a store are written without waiting for it."""

    def waits(self) -> Collection[Hashable]:
        return []


@fault("kv-load-over-store", law="source_stable", seen=("vllm#46951",))
class LoadOverStore(FencedManager):
    """A load fills a block that a store still reads, since only the blocks of steps are fenced."""

    def _submit(self, kind: str, pairs: list[tuple[int, int]], *rids: str) -> Hashable:
        return TieredManager._submit(self, kind, pairs, *rids)


@fault("kv-load-events-child-first", law="event_consistency", seen=("tokenspeed#87",))
class AnnouncesChildFirst(CachesInTier, AnnouncesTiers):
    """Pages that come back from the tier are announced child first."""

    announcer_type = ChildrenFirst


@fault("kv-load-nested-evict", law="prefix_soundness", seen=("sglang#27631",))
class NestedEvict(WritesBackIntoFew):
    """A load makes room before it pins what it reads, and the tier evicts that for what is written back."""

    tier_type = PinsLate
    _tier: PinsLate

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | Loading | None:  # type: ignore[override]
        answer = super().admit(rid, tokens, extra_key, n)
        self._tier.pin()
        return answer
