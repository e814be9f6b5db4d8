"""Faults of paged_cache: prefix hits."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-around-hole", law="prefix_soundness", seen=("seed 004",))
class AnswersAroundHole(WithFaultyPool):
    """A prefix hit skips an evicted block and continues behind it."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            return [self.registered[key] for key in keys if key in self.registered]


@fault("paged-any-index", law="prefix_soundness", seen=("mutant",))
class AnyIndex(WithFaultyPool):
    """A key is a hit at any position in a prefix, not only at its own."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            hit: list[int] = []
            for key in keys:
                if key not in self.registered:
                    break
                hit.append(self.registered[key])
            return hit


@fault("paged-misses-last", law="prefix_completeness", seen=("mutant",))
class MissesLast(WithFaultyPool):
    """The last key of a lookup is never hit."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            return super().lookup(keys[:-1])


@fault("paged-refuses-hits", law="admission_honesty", seen=("vllm#11565",))
class RefusesHits(PagedCache):
    """Admission requires free room for the hit blocks as well."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        if sequence not in self._tables and tokens >= len(keys) * self._size:
            self._pool.require("allocate", self._blocks_for(tokens))
        return super().allocate(sequence, tokens, keys)


@fault("paged-hit-in-blocks", law="write_isolation", seen=("vllm-ascend#13330",))
class HitInBlocks(PagedCache):
    """The length of a hit is returned in blocks instead of tokens."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        answer = super().allocate(sequence, tokens, keys)
        return answer._replace(cached=answer.cached // self._size)
