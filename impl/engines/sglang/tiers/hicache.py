"""SGLang's host tier under a tree: the pool, the controller with its queues, and copies that nobody makes.

Real are the tree with its write-through, write-back and load-back, the HybridCacheController with its queues and
acknowledgements, and the host pool's allocator. In the place of the L2TransferEngine, which copies, stands one that
copies nothing and whose events are done when somebody says so. What ends earlier than what was submitted before it is
heard of with that. No transfer can fail.

The engine loads nothing shorter than 10 tokens, which small pools would hardly meet; here it is one.
Source: sglang/srt/mem_cache/unified_radix_cache.py, hybrid_cache/hybrid_cache_controller.py; sglang/srt/managers/
cache_controller.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

from kvlockstep.impl.engines.copy_engine import Copies, Event
from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE, STUBS, Silent
from kvlockstep.impl.engines.sglang.tiers.host_tier import host_pool
from kvlockstep.reference.kv.transfers import TierUnits, Transfer

PACKAGE = "sglang.srt.mem_cache"
BARE = (f"{PACKAGE}.hybrid_cache",)
HOST = "host"

with without_the_rest(ENGINE, BARE, STUBS):
    controllers: Any = importlib.import_module(f"{PACKAGE}.hybrid_cache.hybrid_cache_controller")
    base: Any = importlib.import_module("sglang.srt.managers.cache_controller")
    FULL: Any = importlib.import_module(f"{PACKAGE}.unified_cache.component_type").ComponentType.FULL


class Part(NamedTuple):
    """A host pool, whose first page is the unit `first` of the tier. `named` is its device pool, if it has a name."""

    pool: Any
    first: int = 0
    named: tuple[str, ...] = ()

    def units(self, slots: Any) -> list[int]:
        """The units that these slots fill."""
        return [self.first + page for page in pages_of(slots, self.pool.page_size)]

    def free(self) -> list[int]:
        """The units that nobody has."""
        return self.units(torch.cat([self.pool.free_slots, *self.pool.release_slots]))


class CopyEngine(Copies):
    """Takes what the controller submits. `needed` are the transfers that the batch waits for, layer by layer.

    With `restores` no batch waits for a load: the engine asks for the event of its last layer. `units` are the host
    pages of each transfer whose end the engine has not heard, by its event. `parts` are the host pools.
    """

    def __init__(self, restores: bool) -> None:
        super().__init__()
        self.parts: list[Part] = []
        self.restores = restores
        self.needed: list[Hashable] = []
        self.units: WeakKeyDictionary[Event, list[int]] = WeakKeyDictionary()
        self.device_to_host_stream = self.host_to_device_stream = Silent()
        self._ids = itertools.count()
        self._loads: dict[Hashable, set[int]] = {}
        self._ended: set[Hashable] = set()

    def submit_device_to_host(self, transfers: Sequence[Any]) -> Any:
        return self._submit("store", transfers)

    def submit_host_to_device(self, transfers: Sequence[Any], on_layer_done: Any, **_options: Any) -> Any:
        done = self._submit("load", transfers)
        if self.restores:
            on_layer_done.__self__.load_events[-1] = done.finish_event
        else:
            self.needed.append(self.submitted[-1].id)
        return done

    def next_id(self) -> int:
        """An id that no transfer has had."""
        return next(self._ids)

    def fenced(self) -> list[Hashable]:
        """The transfers that the engine has waited for, without those that had ended behind an unfinished one."""
        return [id for id in self.fence if id not in self._ended]

    def waited_for(self) -> tuple[Hashable, ...]:
        """Transfers that end before the next one is submitted, which may get their page or unit."""
        fresh = {transfer.id for transfer in self.submitted}
        return tuple(other for other in self.fenced() if other not in fresh)

    def loads_beside(self, blocks: set[int]) -> list[Hashable]:
        """The loads that have not ended and write none of these blocks."""
        going = [id for id in self.events if id in self._loads and id not in self._ended]
        return [id for id in going if self._loads[id].isdisjoint(blocks)]

    def end(self, id: Hashable) -> None:
        """Ends a transfer. Its event is done once all in front of it on its stream have ended, too.

        A transfer without an event was waited for: it is over already.
        """
        if id not in self.events:
            self.fence[:] = [other for other in self.fence if other != id]
            return
        self._ended.add(id)
        stream = [other for other in self.events if (other in self._loads) == (id in self._loads)]
        for over in itertools.takewhile(self._ended.__contains__, stream):
            self.events.pop(over).done = True
            self._ended.remove(over)
            self._loads.pop(over, None)

    def take(self) -> list[Transfer]:
        """Returns what was submitted. What the engine has waited for in the submitting call has ended with it."""
        taken = [transfer._replace(waited=transfer.id in self.fence) for transfer in super().take()]
        over = {transfer.id for transfer in taken if transfer.waited}
        self.fence[:] = [id for id in self.fence if id not in over]
        for id in over:
            self.events.pop(id, None)
        return taken

    def forget(self, ids: Iterable[Hashable]) -> None:
        """Drops these transfers, which were submitted and not taken."""
        forgotten = set(ids)
        self.submitted = [transfer for transfer in self.submitted if transfer.id not in forgotten]
        for id in forgotten:
            self.events.pop(id, None)
        self.fence.clear()

    def _submit(self, kind: Literal["store", "load"], transfers: Sequence[Any]) -> Any:
        host, device, pairs = list[int](), list[int](), list[tuple[Any, ...]]()
        for transfer in transfers:
            part = next(part for part in self.parts if part.pool is transfer.host_pool)
            units = part.units(transfer.host_indices)
            blocks = pages_of(transfer.device_indices, part.pool.page_size)
            places = (units, blocks) if kind == "load" else (blocks, units)
            pairs += [(*part.named, *pair) for pair in zip(*places, strict=True)]
            host, device = host + units, device + blocks
        id = self.next_id()
        self.submitted.append(Transfer(id, kind, HOST, pairs, after=self.waited_for()))
        done = self.event(id)
        self.units[done] = host
        if kind == "load":
            self._loads[id] = set(device)
        return SimpleNamespace(start_event=Event(done=True), finish_event=done, timing_enabled=False)


class Controller(controllers.HybridCacheController):  # type: ignore[misc]
    """The engine's, made without its `__init__`, which looks for devices.

    `restores` is the most loads at a time of an engine that restores, None for one that loads in its batches.
    """

    def __init__(self, allocator: Any, pools: Any, page: int, write_policy: str, restores: int | None) -> None:
        self.mem_pool_device_allocator, self.mem_pool_host = allocator, pools
        self.page_size, self.write_policy, self.io_backend = page, write_policy, "kernel"
        self.device = "cpu"
        self.is_kv_sharded = self.enable_storage = False
        self.pp_prefetch_command_group = self.pp_prefetch_command_thread = None
        self.storage_backend: Any = None
        self.pp_prefetch_state_lock = nullcontext()
        self.pp_prefetch_states: dict[str, Any] = {}
        self.pp_prefetch_decisions: dict[str, Any] = {}
        self.load_fence_stream = self.write_fence_stream = Silent()
        self.load_queue: list[Any] = []
        self.write_queue: list[Any] = []
        self.ack_load_queue: list[Any] = []
        self.ack_write_queue: list[Any] = []
        self.storage_stop_event: Any = Silent()
        self.transfer_layer_id_max = 1
        # Layers are waited for in the batch, so they are done when the next load begins.
        with patch.object(base, "device_module", SimpleNamespace(Event=partial(Event, done=True))):
            self.layer_done_counter = counter = base.LayerDoneCounter(1)
            if restores is not None:
                counter.num_counters = restores
                counter.events = [base.LayerLoadingEvent(1) for _ in range(restores)]
        self.l2_transfer_engine = CopyEngine(restores is not None)

    def _stop_storage_threads(self) -> None:
        """There are none."""


def host_pools(pages: int, page: int) -> Any:
    """A host pool of so many pages, without memory, in the group that the controller wants."""
    pool = host_pool(pages, page)
    entry = controllers.PoolEntry(controllers.PoolName.KV, pool, None, lambda layer: layer, True)
    return controllers.HostPoolGroup([entry])


class HostTier:
    """The host tier of a `tree` over `allocator`: `pages` pages, stored to by one of the engine's write policies.

    With the core in Python the nodes of the tree say which host pages can be found, in the compiled one the queues of
    the controller say which cannot. Nothing shorter than `least` tokens is loaded.
    """

    def __init__(
        self,
        tree: Any,
        allocator: Any,
        pages: int,
        page: int,
        write_policy: str,
        restores: int | None = None,
        least: int = 1,
    ) -> None:
        self.tree, self._page = tree, page
        self._pools = self._make_pools(pages, page)
        self.controller = self._make_controller(allocator, page, write_policy, restores)
        self.copies: CopyEngine = self.controller.l2_transfer_engine
        self.copies.parts = self._parts()
        tree.cache_controller, tree.host_pool_group = self.controller, self._pools
        tree.components[FULL]._full_kv_pool_host = self._pools.anchor_entry.host_pool
        tree.tree_core.set_hicache_enabled()
        tree.write_through_threshold = 1 if write_policy == "write_through" else 2
        tree.is_write_back = write_policy == "write_back"
        tree.load_back_threshold = least
        tree.metrics_collector = None

    def _make_controller(self, allocator: Any, page: int, write_policy: str, restores: int | None) -> Controller:
        return Controller(allocator, self._pools, page, write_policy, restores)

    def _make_pools(self, pages: int, page: int) -> Any:
        return host_pools(pages, page)

    def _parts(self) -> list[Part]:
        """The host pools, as units of the tier."""
        return [Part(self._pools.anchor_entry.host_pool)]

    def units(self) -> TierUnits:
        """What became of each host page."""
        (part,) = self.copies.parts
        free = part.free()
        return self._of_queues(free, part.pool.size // self._page) if self._nodes is None else self._of_nodes(free)

    def kept(self) -> set[int]:
        """Slots on the paths that transfers keep."""
        kept: set[int] = set()
        for end in [*self.tree.ongoing_write_through, *self.tree.ongoing_load_back]:
            if self._nodes is None:
                kept.update(self.tree.path_device_indices(end).tolist())
                continue
            node = self._nodes[end]
            while node.parent is not None:
                slots = node.component_data[FULL].value
                kept.update(() if slots is None else slots.tolist())
                node = node.parent
        return kept

    def load(self, rids: Sequence[str], submit: Callable[[], object]) -> None:
        """Has the engine `submit` what is queued to be loaded, for these requests."""
        first = len(self.copies.submitted)
        submit()
        self.copies.submitted[first:] = [one._replace(rids=rids) for one in self.copies.submitted[first:]]

    def waits(self) -> list[Hashable]:
        """Takes what the engine has waited for, and what the batch waits for: both have landed now."""
        named = [*self.copies.fenced(), *self.copies.needed]
        self.copies.fence.clear()
        self.copies.needed.clear()
        return named

    @property
    def _nodes(self) -> Any:
        """The nodes of the tree by their ids, None in the compiled core, which shows none."""
        return getattr(self.tree.tree_core, "_node_arena", None)

    def _of_nodes(self, free: list[int]) -> TierUnits:
        storing, cached, pinned = list[int](), list[int](), list[int]()
        for node in self._nodes.values():
            data = node.component_data[FULL]
            units = [] if data.host_value is None else self._pages(data.host_value)
            (cached if node.write_through_pending_id is None else storing).extend(units)
            if node.write_through_pending_id is None and data.host_lock_ref:
                pinned += units
        return TierUnits(free, cached, storing, pinned)

    def _of_queues(self, free: list[int], pages: int) -> TierUnits:
        storing = set(self._queued(self.controller.write_queue, self.controller.ack_write_queue))
        pinned = set(self._queued(self.controller.load_queue, self.controller.ack_load_queue))
        cached = set(range(pages)).difference(free, storing)
        return TierUnits(free, sorted(cached), sorted(storing), sorted(pinned & cached))

    def _queued(self, operations: Iterable[Any], acks: Iterable[Any]) -> Iterator[int]:
        """The host pages of what is to be submitted, and of what is not acknowledged."""
        parts = {entry.name: part for entry, part in zip(self._pools.entries, self.copies.parts, strict=True)}
        for operation in operations:
            yield from self.copies.parts[0].units(operation.host_indices)
            for side in operation.pool_transfers or ():
                yield from parts[side.name].units(side.host_indices)
        for ack in acks:
            yield from self.copies.units[ack.finish_event]

    def _pages(self, slots: Any) -> list[int]:
        return pages_of(slots, self._page)


class WithHostTier:
    """The methods of a target with tiers, whose `_host` is a HostTier."""

    late_release = True
    _host: HostTier

    def poll(self) -> None:
        self._host.tree.check_hicache_events()

    def transfers(self) -> Sequence[Transfer]:
        return self._host.copies.take()

    def waits(self) -> Collection[Hashable]:
        return self._host.waits()

    def complete(self, id: Hashable, ok: bool) -> None:
        self._host.copies.end(id)

    def tier(self, name: str) -> TierUnits:
        return self._host.units()


def pages_of(slots: Any, page: int) -> list[int]:
    """The pages that these slots fill."""
    return [slot // page for slot in slots.tolist()[::page]]
