"""SGLang's storage for a tree with more components: pages of a window, and states, beside those of full attention.

A page of another component has the hash of its page of full attention and the name of the pool as its key, as in the
engine's storage of files. What ends a prefix is needed of it: so many pages, or one state. Pages of full attention are
read first. When all have come, those of the others are read in one go, and either they all come or the engine gives
everything up (`_check_hybrid_prefetch_result`). They are written in front of full attention.
Source: sglang/srt/mem_cache/hicache_storage.py, beside those of storage.py and sides.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE, STUBS
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST
from kvlockstep.impl.engines.sglang.tiers.page_storage import Storage
from kvlockstep.impl.engines.sglang.tiers.sides import SidedHierarchy, SidedHostTier
from kvlockstep.impl.engines.sglang.tiers.storage import StoredTier
from kvlockstep.impl.engines.sglang.tiers.storage_controller import Read, StoringController, drained
from kvlockstep.impl.engines.sglang.tiers.stored import StoringScheduler

with without_the_rest(ENGINE, hicache.BARE, STUBS):
    storages: Any = importlib.import_module("sglang.srt.mem_cache.hicache_storage")


class SideRead(Read):
    """Pages of the other components that are read for an operation whose full attention has come."""


class SidedStorage(Storage):
    """A storage that has pages of other components, too. `arrived` are the keys of those just read."""

    arrived: frozenset[str] = frozenset()

    def batch_exists_v2(self, keys: Sequence[str], transfers: Sequence[Any], _extra_info: Any) -> Any:
        """The engine asks how long a prefix is there with what each component needs at its end."""
        full = len(self.found(keys))
        ends, hits = list(range(1, full + 1)), {storages.PoolName.KV: full}
        for transfer in transfers:
            usable = [end for end in range(1, full + 1) if self._ends(transfer, keys[:end])]
            ends = [end for end in ends if end in usable]
            hits |= {transfer.name: usable[-1]} if usable else {}
        return storages.PoolTransferResult(ends[-1] if ends else 0, hits if full else {}, ends)

    def _ends(self, transfer: Any, prefix: Sequence[str]) -> bool:
        """True if the last pages of a prefix are there as well, as many as a transfer has keys."""
        return all(key in self.units_of for key in _keys(transfer.name, prefix[-len(transfer.keys) :]))

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any) -> dict[str, list[bool]]:
        """The engine asks which pages were read."""
        return {one.name: [key in self.arrived for key in _keys(one.name, one.keys)] for one in transfers}


class SidedStoringController(StoringController):
    """Reads and writes what its operations have of other components."""

    def fetched_to(self, current: Callable[[Any], bool]) -> Iterator[int]:
        yield from super().fetched_to(current)
        for operation in self._fetching():
            # What was read of a fetch that was given up is in the queues below.
            if current(operation) or not operation.pool_transfers_done:
                for transfer in _staged(operation):
                    yield from self._units(transfer.name, transfer.host_indices)
        for name, queue in self.extra_host_mem_release_queues.items():
            for slots in queue.queue:
                yield from self._units(name, slots)

    def _to_write(self, operation: Any) -> Iterator[tuple[str, int]]:
        for transfer in operation.pool_transfers or ():
            units = self._units(transfer.name, transfer.host_indices)
            yield from zip(_keys(transfer.name, transfer.keys), units, strict=True)
        yield from super()._to_write(operation)

    def _stop_reading(self, operation: Any, done: int) -> None:
        """Reads the other components if nothing is missing of full attention."""
        keys, to = list[str](), list[int]()
        if done == len(operation.hash_value) and not operation.is_terminated():
            hashes, ends = operation.sidecar_hash_values or operation.hash_value, done
            if operation.sidecar_hash_values is not None:
                ends = operation.sidecar_hit_pages
            self._sync_trailing_keys(operation.pool_transfers or [], hashes, ends)
            for transfer in _staged(operation):
                keys += _keys(transfer.name, transfer.keys)
                to += self._units(transfer.name, transfer.host_indices)
        # Whatever is missing, the others are of no use then.
        there = list(itertools.takewhile(self.storage_backend.units_of.__contains__, keys))
        if there:
            units = [self.storage_backend.units_of[key] for key in there]
            self._submit_read(SideRead(operation, done, there, units), to)
        else:
            self._end_reading(operation, done)

    def _has_read(self, read: Read, pages: int) -> None:
        if isinstance(read, SideRead):
            self._end_reading(read.operation, read.done, read.keys[:pages])
        else:
            super()._has_read(read, pages)

    def _end_reading(self, operation: Any, done: int, arrived: Sequence[str] = ()) -> None:
        """The engine is told which pages of the other components have come, and that this was all."""
        self.storage_backend.arrived = frozenset(arrived)
        self._page_transfer_sidecar(operation, done)
        for ack in drained(self.prefetch_sync_queue):
            self._reduce_prefetch_ack(ack)
            self.ack_prefetch_queue.put(ack)
        super()._stop_reading(operation, done)

    def _units(self, name: Any, slots: Any) -> list[int]:
        pool = self.mem_pool_host.entry_map[name].host_pool
        return next(part for part in self.l2_transfer_engine.parts if part.pool is pool).units(slots)


class SidedStoredTier(StoredTier, SidedHostTier):
    """A host tier with sides, and a storage behind it."""

    controller_type = SidedStoringController


class SidedStoring(SidedHierarchy, StoringScheduler):
    """A part of schedulers with groups, a host tier and a storage. It is named before the scheduler with the groups."""

    tier_type: Callable[..., StoredTier] = SidedStoredTier

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        if self.patience:
            # When full attention has come, the engine's timeout does not end the wait for the others.
            self.patience = None

    def _make_host(self, write_policy: str) -> Any:
        pages = self.tiers[HOST] + sum(side.pages for side in self._make_sides())
        return self._make_sided(self._tier, write_policy, SidedStorage(2 * pages), *self._storing)


def _keys(name: str, hashes: Sequence[str]) -> list[str]:
    return [f"{key}.{name}" for key in hashes]


def _staged(operation: Any) -> list[Any]:
    """What an operation has of other components, with host pages."""
    return [one for one in operation.pool_transfers or () if one.host_indices is not None]
