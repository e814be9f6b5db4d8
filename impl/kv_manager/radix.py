"""kv_manager over a radix cache: prefixes shared by locked handles, published chunk by chunk. Source: seed 001."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvlockstep.impl.kv_manager.tables import RequestManager
from kvlockstep.impl.radix_cache import RadixCache
from kvlockstep.reference.errors import OutOfSlots

if TYPE_CHECKING:
    from kvlockstep.impl.kv_manager.page_table import PageTable

Slots = npt.NDArray[np.int32]


@dataclass
class Request:
    """A live request. The first `handle.length` of its `slots` are the cache's, locked; the others its own.

    `prompt`: tokens known at admission. `kept`: slots before this step's reservation, 0 in the step that admits it.
    """

    tokens: array[int]
    extra_key: int | None
    prompt: int
    handle: Any
    slots: Slots
    computed: int
    kept: int = 0
    row: int = 0


class RadixManager(RequestManager[Request]):
    """`blocks` pages of `block_size` slots. Meets KVManagerTarget with every optional method.

    Trick: a locked handle of a radix tree finds and protects a prefix, at the cost of its length in tokens.

    Cached is what is computed: a prompt chunk by chunk, everything else when the request leaves. Where another request
    was faster, the slots are exchanged for the cached ones at commit. A fork shares what is cached and copies the rest.
    With `tensors` the KV lies in `memory`, a KVTensors on `device`; with `rows` the block tables of up to so many
    requests at a time lie in `table`, a PageTable on `device`, up to date from `launch` on.
    """

    chunk = extra_key = True
    hash_trust = "tokens+parent"

    def __init__(
        self, blocks: int, block_size: int, *, tensors: bool = False, rows: int = 0, device: str = "cpu"
    ) -> None:
        self.cache = RadixCache(blocks, block_size)
        self._make_table = partial(_page_table, rows, blocks, device) if rows else None
        super().__init__(blocks, block_size, tensors=tensors, device=device)

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self.cache.reset()
        self.table = self._make_table() if self._make_table else None
        self._live = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Locks the longest cached prefix that leaves a token to compute, and owns slots for `n` tokens more."""
        if self._full():
            return None
        known = array("q", tokens)
        cached, slots, handle = self.cache.match_request(known, extra_key)
        self.cache.lock(handle)
        try:
            own = self.cache.allocate(min(n, len(known) - cached))
        except OutOfSlots:
            self.cache.unlock(handle)
            return None
        request = Request(known, extra_key, len(known), handle, np.concatenate((slots, own)), cached)
        self._enter(rid, request)
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        """Slots for the next `n` tokens."""
        request = self._live[rid]
        held = len(request.slots)
        missing = request.computed + n - held
        if missing > 0:
            try:
                own = self.cache.allocate(missing)
            except OutOfSlots:
                return False
            request.slots = np.concatenate((request.slots, own))
            self._tabulate(request, held, len(request.slots))
        request.kept = held
        return True

    def copies(self) -> list[tuple[int, int]]:
        """Nothing is ever due: only a fork copies, and at once."""
        return []

    def launch(self) -> None:
        """The block tables on the device are those of this step."""
        if self.table is not None:
            self.table.flush()

    def slots(self, rid: str) -> list[int]:
        """The slots of the request's blocks, in order."""
        slots: list[int] = self._live[rid].slots.tolist()
        return slots

    def blocks(self, rid: str) -> list[int]:
        """The request's block table."""
        blocks: list[int] = self._blocks_of(self._live[rid].slots).tolist()
        return blocks

    def row(self, rid: str) -> int:
        """The request's row of `table`."""
        return self._live[rid].row

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed; those of the prompt are published."""
        request = self._live[rid]
        request.computed += n
        request.kept = len(request.slots)
        before = request.handle.length
        whole = request.computed // self.block_size * self.block_size
        if before < whole and request.computed <= request.prompt:
            tokens, own = request.tokens[:whole], request.slots[:whole]
            _, slots, request.handle = self.cache.cache_unfinished(request.handle, tokens, own, request.extra_key)
            request.slots[before:whole] = slots[before:]
            self._tabulate(request, before, whole)

    def finish(self, rid: str) -> None:
        """Caches what the request has computed and gives the rest of its slots back."""
        request = self._leave(rid)
        pages = -(-request.computed // self.block_size) * self.block_size
        self.cache.free(request.slots[pages:])
        tokens = request.tokens[: request.computed]
        self.cache.cache_finished(request.handle, tokens, request.slots[:pages], request.extra_key)

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission or reservation of this step."""
        request = self._live[rid]
        if request.kept:
            self.cache.free(request.slots[request.kept :])
            request.slots = request.slots[: request.kept]
            return
        self._leave(rid)
        self.cache.free(request.slots[request.handle.length :])
        self.cache.unlock(request.handle)

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        """The child shares what of its parent is cached; the rest is copied into its own slots. None without room."""
        if self._full():
            return None
        parent = self._live[rid]
        shared, computed = parent.handle.length, parent.computed
        try:
            own = self.cache.allocate(computed - shared)
        except OutOfSlots:
            return None
        self.cache.lock(parent.handle)
        slots = np.concatenate((parent.slots[:shared], own))
        tokens = parent.tokens[:]
        request = Request(tokens, parent.extra_key, parent.prompt, parent.handle, slots, computed, len(slots))
        self._enter(child, request)
        return list(zip(parent.slots[shared:computed].tolist(), own.tolist(), strict=False))

    def evict_all(self) -> None:
        """Drops everything cached that no request holds."""
        self.cache.evict(self.cache.sizes().evictable)

    def avail(self) -> int:
        """Slots that are free or evictable."""
        sizes = self.cache.sizes()
        return sizes.free + sizes.evictable

    def free_now(self) -> int:
        """Slots that are free."""
        return self.cache.sizes().free

    def free_slots(self) -> Iterable[int] | None:
        """The free slots."""
        return self.cache.free_slots()

    def free_blocks(self) -> list[int]:
        """The free blocks."""
        blocks: list[int] = self._blocks_of(np.asarray(self.cache.free_slots(), np.int32)).tolist()
        return blocks

    def _full(self) -> bool:
        return self.table is not None and not self.table.free_rows

    def _enter(self, rid: str, request: Request) -> None:
        if self.table is not None:
            request.row = self.table.take_row()
        self._live[rid] = request
        self._tabulate(request, 0, len(request.slots))

    def _leave(self, rid: str) -> Request:
        request = self._live.pop(rid)
        if self.table is not None:
            self.table.free_row(request.row)
        return request

    def _tabulate(self, request: Request, start: int, stop: int) -> None:
        if self.table is not None and start < stop:
            self.table.write(request.row, start // self.block_size, self._blocks_of(request.slots[start:stop]))

    def _blocks_of(self, slots: Slots) -> Any:
        return slots[:: self.block_size] // self.block_size


def _page_table(rows: int, width: int, device: str) -> PageTable:
    from kvlockstep.impl.kv_manager.page_table import PageTable  # noqa: PLC0415  torch is not needed without `rows`

    return PageTable(rows, width, device)
