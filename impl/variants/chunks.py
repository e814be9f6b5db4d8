"""A kv_scheduler whose tier knows chunks of several blocks: a chunk is stored by one transfer, and loaded by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvlockstep.reference.kv_manager.manager import Key
from kvlockstep.reference.kv_manager.tier import Block
from kvlockstep.reference.kv_scheduler.scheduler import Job, KVScheduler
from kvlockstep.reference.kv_scheduler.tiered import Load, TieredScheduler

CHUNK = 2  # blocks


class StoredChunk(NamedTuple):
    """A store in flight: the blocks that it reads."""

    keys: list[Key]
    blocks: list[Block]


class MovesChunks(TieredScheduler):
    """Stores and loads whole chunks of two blocks. Of a chunk that the pool has in part only the rest is loaded."""

    def _commit(self, job: Job, n: int) -> None:
        first = job.computed // (CHUNK * self.block_size) * CHUNK
        KVScheduler._commit(self, job, n)
        table = self._kv._live[job.rid].table
        for i in range(first, job.computed // self.block_size - CHUNK + 1, CHUNK):
            self._store_chunk(table[i : i + CHUNK])

    def _store_chunk(self, blocks: list[Block]) -> None:
        """Submits a store, unless the tier has one of the blocks, or no room for all."""
        keys = [self._kv._key_of.get(block) for block in blocks]
        if any(key is None or self._tier.knows(key) for key in keys):
            return
        pairs: list[tuple[Block, int]] = []
        for key, block in zip(keys, blocks, strict=True):
            unit = self._tier.begin_store(key)
            if unit is None:
                break
            pairs.append((block, unit))
        if len(pairs) < len(blocks):
            for key, _ in zip(keys, pairs, strict=False):
                self._tier.end_store(key, False)
            return
        for block in blocks:
            self._hold(block)
        self._stores[self._submit("store", pairs)] = StoredChunk([key for key in keys if key], blocks)  # type: ignore[assignment]

    def _end_store(self, store: StoredChunk, ok: bool) -> None:  # type: ignore[override]
        for key, block in zip(store.keys, store.blocks, strict=True):
            self._tier.end_store(key, ok)
            self._drop(block)

    def _pinned(self) -> set[Block]:
        stores: Iterator[StoredChunk] = iter(self._stores.values())  # type: ignore[arg-type]
        return {block for store in stores for block in store.blocks} | self._loading()

    def _load(self, job: Job) -> bool:
        kv, size = self._kv, self.block_size
        hit = kv._lookup(job.tokens, job.extra_key)
        ends = range((len(hit) + 1) * size, len(job.tokens), size)
        wanted = [kv._key(job.extra_key, job.tokens[:end]) for end in ends]
        found = list(itertools.takewhile(lambda key: self._tier.find(key) is not None, wanted))
        keys = found[: max(0, (len(hit) + len(found)) // CHUNK * CHUNK - len(hit))]
        if not keys or len(keys) > len(kv._free) + sum(block not in hit for block in kv._idle):
            return False
        for key in keys:
            self._tier.begin_load(key)
        for block in hit:
            self._hold(block)
        blocks = kv._take(len(keys))
        first = CHUNK - len(hit) % CHUNK
        for part in (slice(first), *(slice(i, i + CHUNK) for i in range(first, len(keys), CHUNK))):
            self._load_chunk(job.rid, keys[part], blocks[part], hit)
            hit = []
        return True

    def _load_chunk(self, rid: str, keys: list[Key], blocks: list[Block], hit: Sequence[Block]) -> None:
        units = [self._tier._cached[key] for key in keys]
        id = self._submit("load", list(zip(units, blocks, strict=True)), rid)
        self._loads[id] = Load(rid, keys, units, blocks, list(hit))


CHUNK_VARIANTS = {"moves-chunks": MovesChunks}
