"""kv_manager with a tier on SGLang's prefix tree (0.5.23) with an external store, which it reads without a host tier.

The tree is driven as in manager.py. Real is the flow of the tree (`UnifiedCacheLinkerWrapper`): it looks a prefix up in
the store, loads it into slots of the request, and offloads what it publishes. The store is ours, on the engine's public
base class `UnifiedCacheLinker`: pages by their hashes, the least recently used goes first. As in hicache.py it copies
nothing. A load is submitted with the batch that needs it, which waits for it; the tree gets what was loaded when the
request is published. An offload may fail. A load may not: its batch would be void, which kv_manager does not know.
Source: sglang/srt/mem_cache/unified_cache/unified_cache_linker.py, and managers/scheduler.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.manager import SGLangKVManager
from kvlockstep.impl.engines.sglang.tiers.hicache import pages_of
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

linker: Any = importlib.import_module("sglang.srt.mem_cache.unified_cache.unified_cache_linker")
STORE = "store"


class Store(linker.UnifiedCacheLinker):  # type: ignore[misc]
    """A store of `units` pages of `page` slots.

    `units_of` are those that a lookup finds, the least recently used first. `pending` are the offloads in their order,
    each with the units of the keys that it brings, and its end when it was told.
    """

    layer_done_counter = None

    def __init__(self, units: int, page: int) -> None:
        self.pools: dict[Any, Any] = {}
        self._size, self._page = units, page
        self._ids = itertools.count()
        self.submitted: list[Transfer] = []
        self.reset()

    def reset(self) -> None:
        self.free = list(range(self._size))
        self.units_of: dict[str, int] = {}
        self.pending: deque[tuple[Hashable, dict[str, int]]] = deque()
        self.ended: dict[Hashable, bool] = {}
        self._queued: dict[str, list[tuple[int, int]]] = {}
        self._batch: list[tuple[int, int]] = []
        self.submitted.clear()

    def lookup(self, rid: str, transfers: Sequence[Any]) -> list[int]:
        (keys,) = (transfer.keys for transfer in transfers)
        found = list(itertools.takewhile(self.units_of.__contains__, keys))
        for key in reversed(found):
            self.units_of[key] = self.units_of.pop(key)
        return list(range(1, len(found) + 1))

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        (transfer,) = transfers
        if any(key not in self.units_of for key in transfer.keys):
            return False
        pages = pages_of(transfer.device_indices, self._page)
        self._queued[rid] = [(self.units_of[key], page) for key, page in zip(transfer.keys, pages, strict=True)]
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        self._batch = [pair for pairs in self._queued.values() for pair in pairs]
        self.submitted.append(Transfer(next(self._ids), "load", STORE, self._batch, list(self._queued)))
        self._queued.clear()
        return 0

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        self._batch = []
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def offload(self, transfers: Sequence[Any], session_id: str | None = None) -> bool:
        (transfer,) = transfers
        pages = dict(zip(transfer.keys, pages_of(transfer.device_indices, self._page), strict=True))
        coming = {key for _, units in self.pending for key in units}
        fresh = [key for key in pages if key not in self.units_of]
        # What is there or comes already is not stored again.
        if not fresh or not coming.isdisjoint(fresh) or not self._make_room(len(fresh), set(pages)):
            return False
        units = {key: self.free.pop() for key in fresh}
        id = next(self._ids)
        self.pending.append((id, units))
        self.submitted.append(Transfer(id, "store", STORE, [(pages[key], unit) for key, unit in units.items()]))
        return True

    def num_completed_offloads(self) -> int:
        return sum(1 for _ in itertools.takewhile(lambda offload: offload[0] in self.ended, self.pending))

    def pop_completed_offload(self) -> bool:
        id, units = self.pending.popleft()
        ok = self.ended.pop(id)
        if ok:
            self.units_of |= units
        else:
            self.free += units.values()
        return ok

    def close(self) -> None:
        """There is nothing to close."""

    def view(self) -> TierUnits:
        """What became of each unit. A load keeps what it reads."""
        storing = [unit for _, units in self.pending for unit in units.values()]
        return TierUnits(self.free, list(self.units_of.values()), storing, sorted(self._read()))

    def _read(self) -> set[int]:
        return {unit for pairs in (self._batch, *self._queued.values()) for unit, _ in pairs}

    def _make_room(self, n: int, kept: set[str]) -> bool:
        """Evicts until there are so many free units, but nothing that is `kept` or read. Returns whether there are."""
        read = self._read()
        victims = [key for key, unit in self.units_of.items() if unit not in read and key not in kept]
        if len(self.free) + len(victims) < n:
            return False
        for key in victims[: max(0, n - len(self.free))]:
            self.free.append(self.units_of.pop(key))
        return True


class LinkedManager(SGLangKVManager):
    """A `UnifiedRadixCache` with a store as large as the pool."""

    late_release = True
    fails = "stores"

    def __init__(self, blocks: int, block_size: int, core: str, **options: Any) -> None:
        super().__init__(blocks, block_size, core, **options)
        # The engine announces nothing of the store, so its events do not say what is hit.
        self.event_listener = None
        self.tiers = {STORE: blocks}
        self._store = Store(blocks, block_size)
        self._tree.init_cache_linker(self._store)
        self._loads: list[Hashable] = []

    def ready(self, rid: str) -> int | None:
        """Nobody asks, since no admission waits."""
        return None

    def launch(self) -> None:
        if self._chunks or (self._adder is not None and self._adder.can_run_list):
            self._tree.ready_to_load_host_cache()
        self._loads = [transfer.id for transfer in self._store.submitted if transfer.kind == "load"]
        super().launch()

    def commit(self, rid: str, n: int) -> None:
        self._finish_loads()
        super().commit(rid, n)

    def abort(self, rid: str) -> None:
        self._finish_loads()
        super().abort(rid)

    def poll(self) -> None:
        self._tree.check_hicache_events()

    def transfers(self) -> Sequence[Transfer]:
        submitted, self._store.submitted = self._store.submitted, []
        return submitted

    def waits(self) -> Collection[Hashable]:
        waited, self._loads = self._loads, []
        return waited

    def complete(self, id: Hashable, ok: bool) -> None:
        if any(id == offload for offload, _ in self._store.pending):
            self._store.ended[id] = ok

    def tier(self, name: str) -> TierUnits:
        return self._store.view()

    def limbo(self) -> int:
        """Slots on the paths that offloads keep and that no live request holds."""
        ends = [offload.lock_node_id for offload in self._tree.linker.pending_offloads]
        kept = {slot for end in ends for slot in self._tree.path_device_indices(end).tolist()}
        return len(kept.difference(*map(self.slots, self._running)))

    def _finish_loads(self) -> None:
        """The batch has run (`run_batch`): its loads are over before a result is processed."""
        if self._tree.finish_external_linker_loads([]):
            raise RuntimeError("a load has failed")


make_linked = partial(LinkedManager, core="rust")
make_linked_python = partial(LinkedManager, core="python")
