"""kv_manager in rows: one slot of a pool per request, prefixes reused in place or copied. Source: seed 000."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from kvlockstep.impl.kv_manager.tables import RequestManager
from kvlockstep.impl.slot_pool import SlotPool
from kvlockstep.impl.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_pool import SlotPoolTarget
from kvlockstep.reference.slot_prefix_cache.contract import SlotPrefixCacheTarget

ROW_BLOCKS = 4
INDEX_ONLY = partial(SlotPrefixCache, layers=0)


@dataclass
class Request:
    """A live request in `row`. `source` and `copied`: a due copy of so many tokens from another row; 0 when it has run.

    `lead` stands before the tokens in the prefix cache and is different for every extra key.
    """

    tokens: list[int]
    lead: int
    prompt: int
    row: int
    computed: int
    source: int
    copied: int
    admitted: bool = True


class SlotManager(RequestManager[Request]):
    """`blocks` rows of 4 * `block_size` slots; a block of the contract is a row here, and a row has one owner.

    Trick: a row of a slot_pool for the whole request, so that a table is one number; a short request wastes its rest.

    Admission: the row of the longest cached prefix if it is free and its version current, else another row into which
    the prefix is copied, else an empty one. A free row is never copied from, it is taken: so the source of a due copy
    has a live owner until the copy has run, and is written only behind the copied prefix. A row's entries go when it is
    allocated again, and those beyond the prefix when it is reused in place. Only computed tokens are cached: a prompt
    chunk by chunk, everything else when the request leaves.

    `pool` makes a slot_pool of `blocks` slots, `cache` a slot_prefix_cache of `capacity` entries (without: as many as
    the rows can hold), whose own KV is not used. With `tensors` the KV lies in `memory`, a KVTensors on `device`.
    """

    chunk = extra_key = whole_prompt = copies_at_admit = True
    hash_trust = "tokens+parent"

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        pool: Callable[[int], SlotPoolTarget] = SlotPool,
        cache: Callable[[int, int, int], SlotPrefixCacheTarget] = INDEX_ONLY,
        capacity: int | None = None,
        tensors: bool = False,
        device: str = "cpu",
    ) -> None:
        row_size = self.max_length = ROW_BLOCKS * block_size
        self._rows = blocks
        self._make_pool, self._make_cache = pool, cache
        # A row's entries are its tokens and the lead before them.
        self._capacity = blocks * (row_size + 1) if capacity is None else capacity
        super().__init__(blocks, row_size, tensors=tensors, device=device)

    def reset(self) -> None:
        """Ends every request and forgets everything cached."""
        self._pool = self._make_pool(self._rows)
        self._cache = self._make_cache(self._capacity, self._rows, self.block_size + 1)
        self._idle = dict.fromkeys(range(self._rows), 0)
        self._leads: dict[int | None, int] = {}
        self._live = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        """Takes a row for the whole request."""
        lead = self._leads.setdefault(extra_key, -1 - len(self._leads))
        hit = self._cache.find([lead, *tokens[:-1]])
        cached = max(0, hit.length - 1)
        usable = cached > 0 and self._pool.version(hit.slot) == hit.version
        if usable and self._pool.is_free(hit.slot):
            self._pool.occupy(hit.slot)
            self._leave_idle(hit.slot, cached)
            self._live[rid] = Request(list(tokens), lead, len(tokens), hit.slot, cached, hit.slot, 0)
            return cached
        row = self._allocate()
        if row is None:
            return None
        cached = cached if usable else 0
        self._live[rid] = Request(list(tokens), lead, len(tokens), row, cached, hit.slot, cached)
        return cached

    def append(self, rid: str, token: int) -> None:
        """One more token is known."""
        self._live[rid].tokens.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        """The row has slots up to `max_length`; there are no others to be had."""
        return self._live[rid].computed + n <= self.block_size

    def copies(self) -> list[tuple[int, int]]:
        """The slot copies of this step's admissions."""
        return [
            pair for request in self._live.values() for pair in self._pairs(request.source, request.row, request.copied)
        ]

    def launch(self) -> None:
        """The copies have run."""
        for request in self._live.values():
            request.copied = 0

    def slots(self, rid: str) -> list[int]:
        """All the slots of the request's row."""
        start = self._live[rid].row * self.block_size
        return list(range(start, start + self.block_size))

    def commit(self, rid: str, n: int) -> None:
        """`n` tokens more are computed; those of the prompt are cached at once."""
        request = self._live[rid]
        request.computed += n
        request.admitted = False
        if request.computed <= request.prompt:
            self._insert(request)

    def finish(self, rid: str) -> None:
        """Caches what the request has computed and frees its row."""
        request = self._live.pop(rid)
        self._insert(request)
        self._become_idle(request.row, request.computed)

    def withdraw(self, rid: str) -> None:
        """Takes back the request's admission of this step; a reservation took nothing."""
        if self._live[rid].admitted:
            request = self._live.pop(rid)
            self._become_idle(request.row, 0 if request.copied else request.computed)

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        """Copies what the parent has computed into a row of the child's own. None if no row is free."""
        parent = self._live[rid]
        row = self._allocate()
        if row is None:
            return None
        self._live[child] = Request(
            parent.tokens.copy(), parent.lead, parent.prompt, row, parent.computed, parent.row, 0, admitted=False
        )
        return self._pairs(parent.row, row, parent.computed)

    def evict_all(self) -> None:
        """Drops everything cached in free rows."""
        for row, cached in self._idle.items():
            if cached:
                self._cache.reuse(row, 0)
        self._idle = dict.fromkeys(self._idle, 0)

    def avail(self) -> int:
        """Slots of free rows, with something cached in them or not."""
        return self._pool.free_count * self.block_size

    def free_now(self) -> int:
        """Slots of free rows with nothing cached in them."""
        return list(self._idle.values()).count(0) * self.block_size

    def free_slots(self) -> Iterable[int] | None:
        """The slots of free rows behind what is cached in them."""
        size = self.block_size
        return [slot for row, cached in self._idle.items() for slot in range(row * size + cached, (row + 1) * size)]

    def _allocate(self) -> int | None:
        """A free row, with nothing cached in it any more."""
        if not self._pool.free_count:
            return None
        row = self._pool.alloc()
        self._leave_idle(row, 0)
        return row

    def _leave_idle(self, row: int, kept: int) -> None:
        """The row will be written behind its first `kept` tokens: nothing else of it stays cached."""
        if kept < self._idle.pop(row):
            self._cache.reuse(row, kept + 1 if kept else 0)

    def _become_idle(self, row: int, cached: int) -> None:
        """The row is free; its first `cached` tokens can be hit for as long as the cache names them."""
        self._pool.free(row)
        self._idle[row] = cached

    def _insert(self, request: Request) -> None:
        if request.computed:
            entry: Sequence[int] = [request.lead, *request.tokens[: request.computed]]
            self._cache.insert(entry, request.row, self._pool.version(request.row))

    def _pairs(self, source: int, target: int, length: int) -> list[tuple[int, int]]:
        size = self.block_size
        return [(source * size + i, target * size + i) for i in range(length)]
