"""kv_manager with two tiers on SGLang's prefix tree (0.5.23): its host tier, and a storage behind it, no Scheduler.

The tree is driven as in tiered.py, the storage is that of storage.py. An admission that comes for the first time asks
the storage for what neither pool nor host has (`_prefetch_kvcache`), and each looks whether the answer has come
(`check_prefetch_progress`), as the Scheduler does in its passes. Until then it is told to ask again. Then it is one of
tiered.py, which loads what the host has, whatever has come. A miss is not asked for again, which the Scheduler does.

The engine flushes its caches only when nothing is fetched, stored or moved (`is_fully_idle`), and keeps the storage:
whoever wants that empty, too, calls `clear_hicache_storage_backend`. A reset here is both.
Source: managers/scheduler.py, beside those of tiered.py and storage.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.real_scheduler import engine
from kvlockstep.impl.engines.sglang.tiers.page_storage import STORAGE, Storage
from kvlockstep.impl.engines.sglang.tiers.storage import StoredTier, WaitingTier, WithStorage
from kvlockstep.impl.engines.sglang.tiers.tiered import TieredManager
from kvlockstep.reference.kv.transfers import Fetching


class Asker(engine.Scheduler):  # type: ignore[misc]
    """The engine's Scheduler, as far as it asks the storage."""

    enable_hicache_storage = True
    enable_lmcache = False

    def __init__(self, tree: Any) -> None:
        self.tree_cache = tree

    def ask(self, req: Any) -> None:
        """A request stands in the queue, or stands there again (`_add_request_to_queue`)."""
        req.storage_prefetch_retry_attempts = 0
        req.storage_prefetch_last_match_len = None
        self._prefetch_kvcache(req)

    def waits(self, req: Any) -> bool:
        """Whether a pass leaves a request out for what is fetched (`_get_new_batch_prefill_raw`)."""
        if not self.tree_cache.check_prefetch_progress(req.cache_request_handle):
            return True
        self.tree_cache.pop_prefetch_loaded_span(req.cache_request_handle)
        req.init_next_round_input(self.tree_cache)
        return bool(self._prefetch_after_device_hit_loss(req))


class FetchingManager(WithStorage, TieredManager):
    """A `UnifiedRadixCache` with a host tier half as large as the pool, and a storage twice as large as it.

    A request waits for the end of what is fetched for it (`wait_complete`), page by page: of a read that fails
    nobody is told here how much of it has come.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        core: str,
        write_policy: str = "write_through",
        tier: Callable[..., StoredTier] = StoredTier,
    ) -> None:
        self._tier = tier
        super().__init__(blocks, block_size, core, write_policy, ratio=0.5)
        self.tiers[STORAGE] = self._host.storage.size
        self._asker = Asker(self._tree)
        # Requests in the queue, which have asked the storage; of these the ones that were told to come again.
        self._queue: dict[str, Any] = {}
        self._told: set[str] = set()

    def admit(  # type: ignore[override]
        self, rid: str, tokens: list[int], extra_key: int | None, n: int
    ) -> int | Fetching | None:
        req = self._queue.get(rid)
        if req is None:
            req = self._queue[rid] = self._retracted.get(rid) or super()._request(rid, tokens, extra_key)
            self._asker.ask(req)
            self._answer()
        while self._asker.waits(req):
            # It may have asked again. If nothing is fetched then, it starts in one of the next passes.
            if not self._answer() and req.cache_request_handle in self._tree.ongoing_prefetch:
                self._told.add(rid)
                return Fetching()
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None or rid not in self._told:
            self._leave(rid)
        return cached

    def abort(self, rid: str) -> None:
        if rid in self._queue:
            self._leave(rid)
            self._retracted.pop(rid, None)
        else:
            super().abort(rid)

    def reset(self) -> None:
        self._queue.clear()
        self._told.clear()
        super().reset()
        self._host.storage.clear()

    def complete(self, id: Hashable, ok: bool) -> None:
        move = self._host.controller.moving.get(id)
        if move is not None:
            self._host.controller.end(id, len(move.keys) if ok else 0)
        else:
            super().complete(id, ok)

    def _make_host(self, pages: int, write_policy: str, restores: int | None, least: int) -> StoredTier:
        given = pages, self.block_size, write_policy, Storage(4 * pages), "wait_complete", 1
        return self._tier(self._tree, self._allocator, *given)

    def _request(self, rid: str, tokens: list[int], extra_key: int | None) -> Any:
        return self._queue[rid]

    def _leave(self, rid: str) -> None:
        """A request does not stand in the queue any more; what it has waited for is over, or given up."""
        self._told.discard(rid)
        self._tree.release_aborted_request(self._queue.pop(rid).cache_request_handle)

    def _answer(self) -> bool:
        """The storage has answered what it was asked, and the engine has its pages read. Returns whether it was asked.

        That a read is over it hears in `poll`, as it does at the beginning of a pass.
        """
        controller = self._host.controller
        controller.run_threads()
        if controller.prefetch_hit_queue.empty():
            return False
        self._tree._drain_storage_control_queues_impl(None, 0, 0, 0, None, False)
        controller.run_threads()
        return True


make = partial(FetchingManager, core="rust")
make_python = partial(FetchingManager, core="python")
make_back = partial(FetchingManager, core="rust", write_policy="write_back", tier=WaitingTier)
