"""kv_manager with a tier on SGLang's prefix tree (0.5.23) with its host tier: hierarchical cache without the Scheduler.

The tree is driven as in manager.py, the tier is that of hicache.py. An admission whose prefix is on the host takes its
slots and queues the load (`init_load_back`). The loads of a step are submitted as one when its batch is made
(`ready_to_load_host_cache`), and the batch waits for them. So an admission is answered with a number, and never with
`Loading`. What a step has published is stored when its last result is processed (`flush_pending_backups`).
Source: managers/scheduler.py and schedule_policy.py, beside those of manager.py and hicache.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.manager import SGLangKVManager
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, HostTier, WithHostTier
from kvlockstep.reference.kv.transfers import Transfer
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event

MEDIA = {"GPU": None, "CPU_PINNED": HOST}


class TieredManager(WithHostTier, SGLangKVManager):
    """A `UnifiedRadixCache` with a host tier, `ratio` times as large as the pool.

    `write_policy` is one of the engine's. `restores` is the most loads of an engine that does not load in its batches.
    `least` is the shortest load, in tokens; the engine has 10.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        core: str,
        write_policy: str = "write_through",
        restores: int | None = None,
        ratio: float = 1,
        least: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(blocks, block_size, core, **options)
        pages = max(1, int(ratio * blocks))
        self.tiers = {HOST: pages}
        self._host = self._make_host(pages, write_policy, restores, least)
        # Requests of the step whose results are not processed yet.
        self._results = 0

    def ready(self, rid: str) -> int | None:
        """Nobody asks, since no admission waits."""
        return None

    def launch(self) -> None:
        admitted = self._adder.can_run_list if self._adder is not None else []
        self._results = len({*self._chunks, *admitted, *self._decodes})
        if admitted or self._chunks:
            self._host.load(self._loaded(admitted), self._tree.ready_to_load_host_cache)
        super().launch()

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._results -= 1

    def abort(self, rid: str) -> None:
        super().abort(rid)
        self._results = max(0, self._results - 1)

    def transfers(self) -> Sequence[Transfer]:
        if not self._results:
            self._tree.flush_pending_backups()
        return super().transfers()

    def limbo(self) -> int:
        """Slots on the paths that transfers keep and that no live request holds."""
        return len(self._host.kept().difference(*map(self.slots, self._running)))

    def _loaded(self, admitted: Sequence[Any]) -> list[str]:
        """Those that something is loaded for."""
        return [req.rid for req in admitted if req.host_loaded_length]

    def _make_host(self, pages: int, write_policy: str, restores: int | None, least: int) -> HostTier:
        given = pages, self.block_size, write_policy, restores, least
        return HostTier(self._tree, self._allocator, *given)

    def _neutral(self, event: Any) -> Event:
        neutral = super()._neutral(event)
        return (
            neutral._replace(medium=MEDIA[event.medium]) if isinstance(neutral, BlockStored | BlockRemoved) else neutral
        )


make_through = partial(TieredManager, core="python")
make_through_rust = partial(TieredManager, core="rust")
make_back = partial(TieredManager, core="python", write_policy="write_back")
make_back_rust = partial(TieredManager, core="rust", write_policy="write_back")
make_selective = partial(TieredManager, core="python", write_policy="write_through_selective")
make_selective_rust = partial(TieredManager, core="rust", write_policy="write_through_selective")
