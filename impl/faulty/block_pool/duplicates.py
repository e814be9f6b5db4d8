"""Faults of block_pool: blocks that share a key."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.keys import BlockKey, RequestKeys


@fault("bp-twin-forgotten", law="content_equality", seen=("kvcached#401", "Megatron-LM#6218"))
class WrongTwinForgotten(BlockPool):
    """Handing out a block unindexes the first block with its key, which may be another."""

    def _forget(self, block: int) -> None:
        super()._forget(_first_twin(self, block))


@fault("bp-twin-touched", law="refcount_exact", seen=("TensorRT-LLM#12648",))
class WrongTwinTouched(BlockPool):
    """Touching a hit pins the first block with its key, which may be another."""

    def touch(self, blocks: Sequence[int]) -> None:
        self._check("touch", blocks, self._check_worth_holding)
        super().touch([_first_twin(self, block) for block in blocks])


@fault("bp-twin-unpinned", law="refcount_exact", seen=("TensorRT-LLM#12648",))
class WrongTwinUnpinned(BlockPool):
    """Freeing a block lowers the count of the first block with its key, which may be another."""

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, self._check_held)
        twins = [_first_twin(self, block) for block in blocks]
        held = [twin if self._refs[twin] else block for twin, block in zip(twins, blocks, strict=True)]
        super().free(held if len(set(held)) == len(held) else blocks)


@fault("bp-removes-equal", law="conservation", seen=("seed 002",))
class RemovesItsEqual(BlockPool):
    """The free queue removes the first block that compares equal, which may be another."""

    def touch(self, blocks: Sequence[int]) -> None:
        queue = self._queue.copy()
        super().touch(blocks)
        for block in [block for block in blocks if block in queue]:
            cached = self._cached[block].prefix
            queue.remove(next(b for b in queue if b in self._cached and self._cached[b].prefix == cached))
        self._queue = queue


def _first_twin(pool: BlockPool, block: int) -> int:
    entry = pool._cached.get(block)
    return block if entry is None else next(b for b, other in pool._cached.items() if other.prefix == entry.prefix)


@fault("bp-last-twin", law="agreement", seen=("mutant",))
class AnswersLastTwin(BlockPool):
    """Of two blocks with the same key, a lookup returns the one cached last."""

    def _find(self, wanted: BlockKey) -> int | None:
        found = super()._find(wanted)
        return None if found is None else [b for b in self._cached if _first_twin(self, b) == found][-1]


@fault("bp-rotates-twins", law="atomicity", seen=("mutant",))
class RotatesTwins(BlockPool):
    """A lookup rotates the blocks that share a key, so the next lookup returns another one."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        for block in hits:
            self._cached[block] = self._cached.pop(block)
        return hits
