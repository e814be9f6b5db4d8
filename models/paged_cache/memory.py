"""The KV behind a paged_cache as the model uses it: one stamp per token, spread over the bits of K and V."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from kvlockstep.properties.paged_cache.state import POISON, Tokens
from kvlockstep.properties.stamps import stamps
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.kv_store import KVStoreTarget


class PagedMemory:
    """The KV of one system, one stamp per token, written by the harness into the slots that the tables name."""

    def __init__(self, store: KVStoreTarget, shape: KVShape, blocks: int, block_size: int) -> None:
        self._store = store
        self._elements = shape.heads * shape.head_dim
        self._bits = 8 * shape.item_bytes
        self._size = block_size
        self._slots = blocks * block_size
        self._free = set(range(blocks))

    def write(self, table: Sequence[int], tokens: Tokens, start: int) -> None:
        """Writes the stamps of tokens[start:] behind those before them."""
        self._put(self._slots_of(table, len(tokens))[start:], stamps(tokens)[start:])

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Carries out the copies of an append."""
        if pairs:
            self._store.copy_blocks(pairs)

    def poison_freed(self, free: Sequence[int]) -> None:
        """Marks what became free, so that a later read shows."""
        freed = self._slots_of([block for block in free if block not in self._free], len(free) * self._size)
        self._put(freed, [POISON] * len(freed))
        self._free = set(free)

    def read(self, tables: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
        """The stamps of the first so many positions of each table."""
        wanted = [self._slots_of(table, length) for table, length in tables]
        keys, values = self._store.gather(0, [slot for slots in wanted for slot in slots])
        found = iter([_stamp(tuple(k), tuple(v), self._bits) for k, v in zip(keys, values, strict=True)])
        return [list(itertools.islice(found, len(slots))) for slots in wanted]

    def _put(self, slots: Sequence[int], marks: Sequence[int]) -> None:
        rows = [_rows(mark, self._elements, self._bits) for mark in marks[: len(slots)]]
        if rows:
            self._store.write(0, slots[: len(rows)], [k for k, _ in rows], [v for _, v in rows])

    def _slots_of(self, table: Sequence[int], length: int) -> list[int]:
        """The slots of the first `length` positions, without those that are not there."""
        size = self._size
        slots = [slot for block in table for slot in range(block * size, block * size + size)][:length]
        return [slot for slot in slots if 0 <= slot < self._slots]


@functools.lru_cache(maxsize=4_096)
def _rows(stamp: int, elements: int, bits: int) -> tuple[list[int], list[int]]:
    """A stamp as the elements of K and of V, 32 bits each."""
    digits = [stamp >> (bits * i) & ((1 << bits) - 1) for i in range(2 * elements)]
    return digits[:elements], digits[elements:]


@functools.lru_cache(maxsize=4_096)
def _stamp(key: tuple[int, ...], value: tuple[int, ...], bits: int) -> int:
    return sum(digit << (bits * i) for i, digit in enumerate(key + value))
