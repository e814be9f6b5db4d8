"""Faults of block_pool: caching blocks."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.keys import BlockKey, RequestKeys


@fault("bp-cached-twice", law="agreement", seen=("vllm#49125",))
class CachedTwice(BlockPool):
    """A cached block can be cached again under another key."""

    def _check_cacheable(self, block: int) -> None:
        self._check_held(block)


@fault("bp-free-cached", law="agreement", seen=("mutant",))
class FreeBlockCached(BlockPool):
    """A block can be cached after its request has freed it."""

    def _check_held(self, block: int) -> None:
        pass

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, super()._check_held)
        super().free(blocks)


@fault("bp-behind-hole", law="agreement", seen=("mutant",))
class CachedBehindHole(BlockPool):
    """A block is cached behind a block that caches something else."""

    def _check_caches(self, block: int, key: BlockKey) -> None:
        pass


@fault("bp-publishes-late", law="prefix_completeness", seen=("TensorRT-LLM#15655",))
class PublishesLate(BlockPool):
    """A block can be hit only after the lookup that follows its caching."""

    def _clear(self) -> None:
        super()._clear()
        self._late: set[int] = set()

    def cache_full_blocks(self, keys: RequestKeys, table: Sequence[int], cached: int, full: int) -> None:
        super().cache_full_blocks(keys, table, cached, full)
        self._late.update(table[cached:full])

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        late, self._late = self._late, set()
        return next((hits[:i] for i, block in enumerate(hits) if block in late), hits)


@fault("bp-masks-miss", law="prefix_completeness", seen=("vllm#42258",))
class MasksMiss(BlockPool):
    """Writers keep prefixes of odd length and readers accept even ones, so nothing is hit."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        kept = [n for n in range(1, len(hits) + 1) if n % 2]
        return hits[: max((n for n in kept if n % 2 == 0), default=0)]
