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
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from queue import Queue
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.manager import ENGINE, STUBS, Silent, configure
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

STORAGE = "storage"
# The engine uses this share of its host pages at most for what is fetched.
FETCHED_SHARE = 0.5

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


class Storage:
    """Pages by their hashes, in `units`; `units_of` are those that are stored, the least recently used first."""

    def __init__(self, units: int) -> None:
        self.size = units
        self.clear()

    def clear(self) -> None:
        self.free = list(range(self.size))
        self.units_of: dict[str, int] = {}
        self.writing: dict[str, int] = {}
        self.readers: Counter[int] = Counter()

    def batch_exists(self, keys: Sequence[str], _extra_info: Any = None) -> int:
        """The engine asks how many of the first pages are there."""
        return len(self.found(keys))

    def found(self, keys: Sequence[str]) -> list[int]:
        """The units of the first of these pages, as far as they are stored. They are used by that."""
        found = list(itertools.takewhile(self.units_of.__contains__, keys))
        for key in reversed(found):
            self.units_of[key] = self.units_of.pop(key)
        return [self.units_of[key] for key in found]

    def begin_write(self, key: str) -> int | None:
        """A unit for a page, with an eviction if there is none free; None if all are in use."""
        if not self.free:
            victim = next((key for key, unit in self.units_of.items() if not self.readers[unit]), None)
            if victim is None:
                return None
            self.free.append(self.units_of.pop(victim))
        self.writing[key] = self.free.pop(0)
        return self.writing[key]

    def end_write(self, key: str, ok: bool) -> None:
        """A page is written, or is not."""
        unit = self.writing.pop(key)
        if ok:
            self.units_of[key] = unit
        else:
            self.free.append(unit)

    def forget(self, key: str) -> None:
        """A page could not be read."""
        self.free.append(self.units_of.pop(key))

    def units(self) -> TierUnits:
        """What became of each unit."""
        pinned = [unit for unit, readers in self.readers.items() if readers]
        return TierUnits(self.free, list(self.units_of.values()), list(self.writing.values()), pinned)


class Read(NamedTuple):
    """Pages that are read in one go for an operation; `done` pages of it were read before."""

    operation: Any
    done: int
    keys: list[str]
    units: list[int]


class Write(NamedTuple):
    """Pages of an operation that are written; None if the engine has waited for the end, and heard of it."""

    operation: Any
    keys: list[str]


class StoringController(hicache.Controller):
    """The engine's with a `storage`, from which its thread reads `pages` at a time; the engine reads 128."""

    def __init__(self, allocator: Any, pools: Any, page: int, write_policy: str, storage: Storage, pages: int) -> None:
        super().__init__(allocator, pools, page, write_policy, None)
        self.enable_storage, self.storage_backend, self._pages = True, storage, pages
        self.host_memory_mode = "cache"
        self.prefetch_hits_sync_groups: list[Any] = []
        self.prefetch_completion_sync_groups: list[Any] = []
        self.prefetch_capacity_limit = int(FETCHED_SHARE * pools.anchor_entry.host_pool.size)
        self.prefetch_tokens_occupied = 0
        for name in (
            "prefetch",
            "backup",
            "prefetch_sync",
            "prefetch_hit",
            "ack_prefetch",
            "ack_backup",
            "host_mem_release",
        ):
            setattr(self, f"{name}_queue", Queue())
        self.prefetch_buffer: Any = Queue()
        self._init_extra_host_mem_release_queues()
        # The engine's loop over what is asked for ends when it has answered everything.
        self.storage_stop_event = SimpleNamespace(is_set=lambda: True, clear=lambda: None)
        self.submitted: list[Transfer] = []
        self.moving: dict[Hashable, Read | Write] = {}
        # Operations whose last acknowledgement was not put.
        self.reading: list[Any] = []

    def reset(self) -> None:
        """The engine's, which starts its threads anew."""
        with patch.object(hicache.base, "threading", SimpleNamespace(Thread=Silent)):
            super().reset()

    def run_threads(self) -> None:
        """The threads take what is in their queues; what they read and write is submitted."""
        self.prefetch_thread_func()
        for operation in drained(self.prefetch_buffer):
            self.reading.append(operation)
            self._read(operation, 0)
        for operation in drained(self.backup_queue):
            self._write(operation)

    def finish_writes(self) -> None:
        """Somebody waits until everything is written that is to be, and is told so; the storage has it when it ends."""
        copies = self.l2_transfer_engine
        for operation in drained(self.backup_queue):
            self._write(operation)
        fresh = {transfer.id for transfer in copies.submitted}
        for id, move in list(self.moving.items()):
            if isinstance(move, Write) and move.operation is not None:
                self.ack_backup_queue.put(move.operation)
                self.moving[id] = move._replace(operation=None)
                if id in fresh:
                    self.end(id, len(move.keys))
                copies.fence.append(id)

    @property
    def answers(self) -> bool:
        """True if the next pass hears something, whatever is in flight."""
        return not all(
            queue.empty() for queue in (self.prefetch_hit_queue, self.ack_prefetch_queue, self.ack_backup_queue)
        )

    def take(self) -> list[Transfer]:
        """Returns the reads that were submitted since the last time; writes are submitted with the copies."""
        submitted, self.submitted = self.submitted, []
        return submitted

    def end(self, id: Hashable, written: int) -> None:
        """A move has ended, with so many pages written."""
        move, storage = self.moving.pop(id), self.storage_backend
        if isinstance(move, Write):
            for n, key in enumerate(move.keys):
                storage.end_write(key, n < written)
            if move.operation is None:
                self.l2_transfer_engine.end(id)
            else:
                self.ack_backup_queue.put(move.operation)
            return
        storage.readers.subtract(move.units)
        if written < len(move.keys):
            key, unit = move.keys[written], move.units[written]
            if storage.units_of.get(key) == unit and not storage.readers[unit]:
                storage.forget(key)
        self._has_read(move, written)

    def fetched_to(self, current: Callable[[Any], bool]) -> Iterator[int]:
        """The host pages that operations still own, and those that wait to be freed; `current` are not given up."""
        for operation in self._fetching():
            slots = operation.host_indices[0 if current(operation) else operation.completed_tokens :]
            yield from hicache.pages_of(slots, self.page_size)
        for slots in self.host_mem_release_queue.queue:
            yield from hicache.pages_of(slots, self.page_size)

    def _fetching(self) -> list[Any]:
        """The operations whose host pages the engine has not taken back, or put in its tree."""
        acknowledged = [ack.operation for ack in self.ack_prefetch_queue.queue if ack.completed_req]
        return [*self.prefetch_buffer.queue, *self.reading, *acknowledged]

    def _read(self, operation: Any, done: int) -> None:
        """Goes on reading behind so many pages, as far as they are there; a read that was given up ends."""
        keys = [] if operation.is_terminated() else operation.hash_value[done : done + self._pages]
        units = self.storage_backend.found(keys)
        if not units:
            self._stop_reading(operation, done)
            return
        pages = hicache.pages_of(operation.host_indices[done * self.page_size :], self.page_size)
        self._submit_read(Read(operation, done, keys[: len(units)], units), pages)

    def _write(self, operation: Any) -> None:
        storage, pairs, written = self.storage_backend, list[tuple[int, int]](), list[str]()
        for key, page in self._to_write(operation):
            if storage.found([key]) or key in storage.writing:
                continue
            unit = storage.begin_write(key)
            if unit is None:
                break
            pairs.append((page, unit))
            written.append(key)
        if pairs:
            self._submit(STORAGE, hicache.HOST, pairs, [], Write(operation, written))
        else:
            self.ack_backup_queue.put(operation)

    def _to_write(self, operation: Any) -> Iterator[tuple[str, int]]:
        """The keys that an operation writes, with their host pages."""
        pages = hicache.pages_of(operation.host_indices, self.page_size)
        return zip(operation.hash_value, pages, strict=True)

    def _submit_read(self, read: Read, pages: Sequence[int]) -> None:
        self.storage_backend.readers.update(read.units)
        pairs = list(zip(read.units, pages, strict=False))
        self._submit(hicache.HOST, STORAGE, pairs, [read.operation.request_id], read)

    def _submit(self, to: str, of: str, pairs: list[tuple[int, int]], rids: list[str], move: Read | Write) -> None:
        id = self.l2_transfer_engine.next_id()
        submitted = self.submitted if isinstance(move, Read) else self.l2_transfer_engine.submitted
        submitted.append(Transfer(id, "move", to, pairs, rids, after=self.l2_transfer_engine.waited_for(), source=of))
        self.moving[id] = move

    def _has_read(self, read: Read, pages: int) -> None:
        """So many pages of it have come."""
        self._acknowledge(read.operation, completed_tokens=(read.done + pages) * self.page_size)
        if pages == len(read.keys):
            self._read(read.operation, read.done + pages)
        else:
            self._stop_reading(read.operation, read.done + pages)

    def _stop_reading(self, operation: Any, _done: int) -> None:
        """An operation ends with so many pages."""
        self.reading.remove(operation)
        self._acknowledge(operation, completed_req=True)

    def _acknowledge(self, operation: Any, **what: Any) -> None:
        ack = hicache.base.PrefetchAck(rid=operation.request_id, operation=operation, **what)
        self._reduce_prefetch_ack(ack)
        self.ack_prefetch_queue.put(ack)


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


def drained(queue: Any) -> Iterator[Any]:
    """Everything that is in a queue."""
    while not queue.empty():
        yield queue.get()
