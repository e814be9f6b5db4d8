"""kv_scheduler with transfers on SGLang's Scheduler (0.5.23) with its host tier: hierarchical cache, on CPU.

The scheduler is driven as in scheduler.py, the tier is that of hicache.py.

Written through, a page is stored when it is published: queued when the result of a batch is processed, and submitted
then or at the next step. Written back, it is stored when it is evicted, and the scheduler waits for that. A load is
submitted with the batch that needs it, which waits for it layer by layer; the engine hears of its end in a later step.
On the device both directions run behind the batches in flight (`load_fence_stream`, `write_fence_stream`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.real_scheduler import Scheduler
from kvlockstep.impl.engines.sglang.scheduler import SGLangScheduler
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, HostTier, WithHostTier
from kvlockstep.reference.kv_scheduler.contract import Batch


class DrainingScheduler(Scheduler):
    """Without sglang-scheduler-aborted-under-store: waits for its stores before it retracts a request."""

    def update_running_batch(self, batch: Any) -> Any:
        if batch.reqs and not batch.check_decode_mem():
            self.tree_cache.writing_check(write_back=True)
        return super().update_running_batch(batch)


class HierarchicalScheduler(WithHostTier, SGLangScheduler):
    """A Scheduler whose tree has a host tier, as large as the pool, with one of the engine's `write_policy`.

    `kind` is the engine's Scheduler, `_kind` unless it is given.
    """

    _kind: Callable[..., Any] = DrainingScheduler
    in_steps = ordered = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        write_policy: str = "write_through",
        kind: Callable[..., Any] | None = None,
        core: str = "python",
        **options: Any,
    ) -> None:
        super().__init__(blocks, block_size, budget, running, kind=kind or self._kind, core=core, **options)
        self.tiers = {HOST: blocks}
        self._host = self._make_host(write_policy)
        self._scheduler.enable_hierarchical_cache = True

    def _make_host(self, write_policy: str) -> HostTier:
        return HostTier(self._tree, self._allocator, self.tiers[HOST], self.block_size, write_policy)

    def schedule(self) -> Batch:
        copies = self._host.copies
        copies.fence.clear()
        copies.needed.clear()
        first = len(copies.submitted)
        batch, last = self._decide()
        rids = [item.rid for item in batch.items if self._reqs[item.rid].host_loaded_length]
        # All of it was submitted in front of the batch.
        copies.submitted[first:last] = [
            transfer._replace(before=True, rids=rids if transfer.kind == "load" else ())
            for transfer in copies.submitted[first:last]
        ]
        return batch

    def _decide(self) -> tuple[Batch, int]:
        """The next batch, and how many copies were submitted in front of it, with those of before."""
        batch = super().schedule()
        return batch, len(self._host.copies.submitted)

    def reset(self) -> None:
        copies = self._host.copies
        copies.fence.clear()
        super().reset()
        # What the retraction has written back was waited for, and is forgotten.
        copies.forget(copies.fence)
        if self._tree.tree_core.evictable_size():
            raise RuntimeError("the engine has refused to flush its caches")

    def limbo(self) -> int:
        """Slots on the paths that transfers keep and that no live request holds."""
        kept = self._host.kept()
        return len(kept.difference(*map(self.slots, self._live()))) if kept else 0

    def _live(self) -> list[str]:
        """The requests that hold KV."""
        return [rid for rid, req in self._reqs.items() if req.kv.holds_kv]


make = HierarchicalScheduler
make_overlap = partial(HierarchicalScheduler, overlap=True)
make_overlap_back = partial(HierarchicalScheduler, write_policy="write_back", overlap=True)
make_overlap_rust = partial(make_overlap, core="rust")
make_overlap_back_rust = partial(make_overlap_back, core="rust")
make_selective = partial(HierarchicalScheduler, write_policy="write_through_selective", overlap=True)
make_undrained = partial(HierarchicalScheduler, kind=Scheduler)
