"""Faults of kv_manager: admissions that wait for a fetch and hold nothing, and moves between two tiers."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.tiers import HearsAtOnce
from kvlockstep.reference.kv.transfers import Fetching, Loading
from kvlockstep.reference.kv_manager.fetching import FetchingManager
from kvlockstep.reference.kv_manager.moving import Move

Answer = int | Loading | Fetching | None


class CachesOnDisk(HearsAtOnce, FetchingManager):
    """Neither the pool nor the host tier keeps what nobody uses, so that what is hit comes from the disk."""

    def poll(self) -> None:
        self._drop_caches()
        super().poll()

    def _drop_caches(self) -> None:
        self.evict_all()
        tier = self._tier
        for key, unit in list(tier._cached.items()):
            if not tier._readers[unit]:
                tier._free.append(tier._cached.pop(key))


@fault("kv-fetch-told-for-ever", law="fetch_ends", seen=("dynamo#3730",))
class FetchToldForEver(CachesOnDisk):
    """The end of a fetch is never noticed, so its request is told to ask again for good."""

    def _fetches(self, rid: str) -> bool:
        return rid in self._fetched


@fault("kv-fetch-for-nobody", law="fetch_ends", seen=("mutant",))
class FetchForNobody(CachesOnDisk):
    """A request is told to wait for a fetch while a back-up is in flight, which is for nobody."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Answer:  # type: ignore[override]
        return Fetching() if self._moves else super().admit(rid, tokens, extra_key, n)


@fault("kv-fetch-without-end", law="fetch_ends", seen=("shape: a time limit that nobody looks at",))
class FetchWithoutEnd(CachesOnDisk):
    """A request is told to wait for its fetch to the end, though once should be enough."""

    patience = 1


@fault("kv-fetch-takes-block", law="leak_freedom", seen=("LMCache#2785",))
class FetchTakesBlock(CachesOnDisk):
    """A request that is told to wait for a fetch takes its first block in the pool all the same."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> Answer:  # type: ignore[override]
        answer = super().admit(rid, tokens, extra_key, n)
        if isinstance(answer, Fetching) and self._free:
            self._take(1)
        return answer


@fault("kv-fetch-promised-early", law="failure_visible", seen=("mutant",))
class FetchPromisedEarly(CachesOnDisk):
    """A block that could not be fetched from the disk is loaded from the host tier all the same."""

    def _end_move(self, move: Move, ok: bool) -> None:
        super()._end_move(move, ok or move.rid is not None)


@fault("kv-abort-frees-fetch", law="target_owned", seen=("vllm#32255",))
class AbortFreesFetch(CachesOnDisk):
    """An abort of a request that waits for a fetch frees the units that the fetch still writes."""

    def abort(self, rid: str) -> None:
        for id, move in list(self._moves.items()):
            if move.rid == rid:
                self._end_move(self._moves.pop(id), False)
        super().abort(rid)
