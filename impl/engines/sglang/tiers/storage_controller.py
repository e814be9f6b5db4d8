"""SGLang's cache controller with a storage: its queues, and the reads and writes that nobody makes.

storage.py says what is real here, and what stands in for the engine's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from queue import Queue
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from kvlockstep.impl.engines.sglang.modules import Silent
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.impl.engines.sglang.tiers.page_storage import STORAGE, Storage
from kvlockstep.reference.kv.transfers import Transfer

# The engine uses this share of its host pages at most for what is fetched.
FETCHED_SHARE = 0.5


class Read(NamedTuple):
    """Pages that are read in one go for an operation; `done` pages of it were read before."""

    operation: Any
    done: int
    keys: list[str]
    units: list[int]


class Write(NamedTuple):
    """Pages that are written. `operation` is None once the engine has waited for the end and heard of it."""

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
        """Lets the engine wait for all writes: it is told that they ended, though their bytes come later."""
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
        """The host pages that operations still own, and those that wait to be freed. `current`: it goes on."""
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
        """Reads the next pages behind the `done` ones, as far as they are stored; none if the fetch was given up."""
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


def drained(queue: Any) -> Iterator[Any]:
    """Everything that is in a queue."""
    while not queue.empty():
        yield queue.get()
