"""SGLang's storage behind its host tier: the controller with its queues, and reads and writes that nobody makes.

Real are the tree with `prefetch_from_storage`, `check_prefetch_progress` and `write_backup_storage`, and the controller
with its queues, its query for what is stored (`prefetch_thread_func`) and its acknowledgements. In place of the
threads that read and write (`prefetch_io_aux_func`, `backup_thread_func`) a read or a write of pages is a move, over
when somebody says so. They work off their queues in order, some pages at a time; a query is answered at once. The
storage is ours: pages by their hashes, the least recently used one goes first. What could not be read is forgotten, and
what could not be written is not there.

The engine fetches nothing shorter than 256 tokens; here it is one page.
Source: sglang/srt/mem_cache/unified_radix_cache.py and hybrid_cache/hybrid_cache_controller.py;
sglang/srt/managers/cache_controller.py.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE, STUBS, configure
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.impl.engines.sglang.tiers.page_storage import STORAGE, Storage
from kvlockstep.impl.engines.sglang.tiers.storage_controller import StoringController
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

with without_the_rest(ENGINE, hicache.BARE, STUBS):
    poll_timer: Any = importlib.import_module("sglang.srt.utils.poll_timer")

# What the engine has by default; a miss is asked for again behind so many passes, and so often.
configure(
    {
        "memory": {
            "hicache_host_memory_mode": "cache",
            "hicache_storage_prefetch_retry_poll_interval": 8,
            "hicache_storage_prefetch_retry_max_attempts": 8,
        }
    }
)


class Clock:
    """The time of the engine's limits, in scheduling passes."""

    def __init__(self) -> None:
        self.now = 0

    def perf_counter(self) -> float:
        return self.now


CLOCK = poll_timer.time = Clock()


class StoredTier(hicache.HostTier):
    """A host tier with a `storage` behind it; `policy` says how long a request waits for what is fetched from there.

    Under "timeout" that is so many scheduling passes, whatever the length.
    """

    controller: StoringController
    controller_type: Callable[..., StoringController] = StoringController

    def __init__(
        self,
        tree: Any,
        allocator: Any,
        pages: int,
        page: int,
        write_policy: str,
        storage: Storage,
        policy: str,
        batch: int,
        **sides: Any,
    ) -> None:
        self.storage, self._batch = storage, batch
        # Whose fetch was given up for room; only a repaired tier does that.
        self.given_up: set[str] = set()
        super().__init__(tree, allocator, pages, page, write_policy, **sides)
        tree.enable_storage = True
        tree.prefetch_stop_policy, tree.prefetch_threshold = policy, page
        tree.prefetch_timeout_base, tree.prefetch_timeout_per_page = 1.0, 0.0

    def units(self) -> TierUnits:
        view = super().units()
        fetched = list(self.controller.fetched_to(self._is_current))
        # What the compiled core has is known only by what others have.
        cached = view.cached if self._nodes is not None else [page for page in view.cached if page not in fetched]
        return view._replace(cached=cached, storing=[*view.storing, *fetched])

    def _make_controller(self, allocator: Any, page: int, write_policy: str, restores: int | None) -> StoringController:
        return self.controller_type(allocator, self._pools, page, write_policy, self.storage, self._batch)

    def _is_current(self, operation: Any) -> bool:
        info = self.tree.ongoing_prefetch.get(operation.handle)
        return info is not None and info.operation is operation


class WithStorage(hicache.WithHostTier):
    """The methods of a target with both tiers, whose `_host` is a StoredTier."""

    moves = True
    loses = (STORAGE,)
    fails = {STORAGE: "any"}
    _host: StoredTier

    def hear(self) -> None:
        """The engine hears of what has ended."""
        super().poll()

    def poll(self) -> None:
        """What is heard of may be followed by an answer at once, where a thread has nothing to copy."""
        while True:
            self.hear()
            self._host.controller.run_threads()
            if not self._host.controller.answers:
                return

    def transfers(self) -> Sequence[Transfer]:
        self._host.controller.run_threads()
        return [*super().transfers(), *self._host.controller.take()]

    def tier(self, name: str) -> TierUnits:
        return self._host.storage.units() if name == STORAGE else super().tier(name)


class WaitingTier(StoredTier):
    """Without sglang-storage-back-out-of-memory: waits for the storage before it gives up making room.

    If that does not help, it gives up what is fetched.
    """

    def __init__(self, tree: Any, *given: Any) -> None:
        super().__init__(tree, *given)
        self._drop = tree._drop_subtree_no_host
        tree._drop_subtree_no_host = self._drop_when_written

    def _drop_when_written(self, node_id: Any, tracker: Any) -> bool:
        """What is being written to the storage is locked on the host, and keeps what is in front of it."""
        if self._drop(node_id, tracker):
            return True
        self.controller.finish_writes()
        self.tree.drain_storage_control_queues_local()
        if self.tree.backup_node_for_write_back(node_id):
            self.tree._demote(node_id, tracker)
            return True
        # A fetch locks on the host what is in front of it.
        for request in list(self.tree.ongoing_prefetch):
            self.given_up.add(request.rid)
            self.tree.release_aborted_request(request)
        return bool(self._drop(node_id, tracker))
