"""Faults of paged_cache: reset."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation


@fault("paged-reset-keys", law="reset_complete", seen=("lmdeploy#4917",))
class ResetKeepsKeys(PagedCache):
    """A reset keeps the registered keys."""

    def reset(self) -> None:
        old = getattr(self, "_pool", None)
        super().reset()
        if old is not None and old.idle():
            self._pool.registered = {key: b for key, b in old.registered.items() if b in old.idle()}


@fault("paged-reset-counts", law="reset_complete", seen=("dynamo#6536",))
class ResetKeepsCounts(PagedCache):
    """A reset keeps the counts of hits and misses."""

    def reset(self) -> None:
        old = getattr(self, "_pool", None)
        super().reset()
        if old is not None:
            self._pool.counts.update({name: old.counts[name] for name in ("hits", "misses")})


@fault("paged-reset-lengths", law="structure", seen=("transformers#48509",))
class ResetKeepsLengths(PagedCache):
    """A reset empties the pool but keeps the lengths of the sequences."""

    def reset(self) -> None:
        old = dict(getattr(self, "_lengths", {}))
        super().reset()
        self._old_lengths = old

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        answer = super().allocate(sequence, tokens, keys)
        self._lengths[sequence] += self._old_lengths.pop(sequence, 0)
        return answer
