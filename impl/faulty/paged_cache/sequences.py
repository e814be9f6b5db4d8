"""Faults of paged_cache: allocating, growing, forking, cutting and freeing sequences."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.paged_cache.pool import WithFaultyPool
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth, UnknownSequence
from kvlockstep.reference.paged_cache.pool import PagedPool


@fault("paged-free-stack", law="agreement", seen=("mutant",))
class LastFreedFirst(WithFaultyPool):
    """The free queue is a stack, so the block freed last is taken first."""

    class pool_type(PagedPool):
        def _put_back(self, block: int) -> None:
            super()._put_back(block)
            self.free.insert(0, self.free.pop())


@fault("paged-takes-held", law="no_aliasing", seen=("vllm#42571",))
class TakesHeld(WithFaultyPool):
    """With no block free or idle, an allocation takes the head of another sequence."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            if operation == "append" or n != 1 or hit or self.free or self.idle() or not self.blocks:
                super().require(operation, n, hit)

        def take(self, depth: int, n: int) -> list[int]:
            if depth or n != 1 or self.free or self.idle():
                return super().take(depth, n)
            block = next(i for i, b in enumerate(self.blocks) if b.holders and b.depth == depth)
            self.hold([block])
            return [block]


@fault("paged-one-more", law="structure", seen=("mutant",))
class OneBlockMore(PagedCache):
    """A sequence that fills its last block gets another block at once."""

    def _blocks_for(self, tokens: int) -> int:
        return tokens // self._size + 1 if tokens else 0


@fault("paged-allocate-extends", law="no_double_free", seen=("seed 004",))
class AllocateExtends(PagedCache):
    """Allocating for a live sequence appends blocks, even if its last block is not full."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        if sequence not in self._tables:
            return super().allocate(sequence, tokens, keys)
        need = self._blocks_for(tokens)
        self._pool.require("allocate", need)
        new = self._pool.take(len(self._tables[sequence]), need)
        self._tables[sequence] += new
        self._lengths[sequence] += tokens
        return Allocation(0, new)


@fault("paged-append-creates", law="no_double_free", seen=("seed 004",))
class AppendCreates(PagedCache):
    """Appending to an unknown sequence creates it."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        if sequence in self._tables:
            return super().append(sequence, tokens)
        return Growth(self.allocate(sequence, tokens).blocks, [])


@fault("paged-fork-into-live", law="no_double_free", seen=("seed 004",))
class ForkIntoLive(PagedCache):
    """Forking into a live sequence appends the shared blocks to that sequence's table."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        if child not in self._tables or source not in self._tables:
            return super().fork(source, child, tokens)
        shared = list(self._tables[source])
        self._pool.hold(shared)
        self._tables[child] += shared
        return self.table(child)


@fault("paged-fork-whole-block", law="structure", seen=("seed 004",))
class ForkTakesWholeBlock(PagedCache):
    """A child forked in mid-block also gets the parent's later tokens in that block."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        self._lengths[child] = min(self._lengths[source], len(table) * self._size)
        return table


@fault("paged-fork-unheld", law="refcount_exact", seen=("atlas#692",))
class ForkWithoutHolding(PagedCache):
    """A fork copies the table but takes no references."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        for block in table:
            self._pool.blocks[block].holders -= self._pool.blocks[block].holders > 1
        return table

    def free(self, sequence: int) -> None:
        _, table = self._find("free", sequence)
        for block in table:
            self._pool.blocks[block].holders = max(1, self._pool.blocks[block].holders)
        super().free(sequence)


@fault("paged-free-unknown", law="no_double_free", seen=("LMCache#2559",))
class FreeUnknown(PagedCache):
    """Freeing an unknown sequence is silently accepted."""

    def free(self, sequence: int) -> None:
        try:
            super().free(sequence)
        except UnknownSequence:
            return


@fault("paged-truncate-keeps", law="structure", seen=("sglang#22862",))
class TruncateKeepsBlocks(PagedCache):
    """Truncating a sequence keeps the blocks of the removed tokens in its table."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, _ = self._find("truncate", sequence)
        if not 0 <= tokens <= length:
            raise InvalidArgument("tokens")
        self._lengths[sequence] = tokens


@fault("paged-keeps-one", law="admission_honesty", seen=("llama.cpp#10873",))
class KeepsOneFree(WithFaultyPool):
    """The last free block is never handed out."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            super().require(operation, n + (0 < n == len(self.free) and len(self.blocks) > 1), hit)


@fault("paged-truncate-clamps", law="structure", seen=("mlx-lm#1547",))
class TruncateClamps(PagedCache):
    """Truncating into a shared prefix silently stops at its end."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, table = self._find("truncate", sequence)
        shared = sum(self._pool.blocks[block].holders > 1 for block in table) * self._size
        super().truncate(sequence, max(tokens, min(shared, length)) if 0 <= tokens <= length else tokens)


@fault("paged-truncate-zero", law="structure", seen=("transformers#47433",))
class TruncateToZeroIsNone(PagedCache):
    """Truncating to 0 tokens removes nothing, and a negative length counts from the end."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, _ = self._find("truncate", sequence)
        super().truncate(sequence, (length + tokens if tokens < 0 else tokens) or length)


@fault("paged-empty-unknown", law="agreement", seen=("seed 004", "vllm#18829"))
class EmptyIsUnknown(PagedCache):
    """Freeing a sequence that has no blocks is refused as unknown."""

    def free(self, sequence: int) -> None:
        if not self._find("free", sequence)[1]:
            raise UnknownSequence("no blocks")
        super().free(sequence)


@fault("paged-frees-head-first", law="agreement", seen=("seed 004",))
class FreesHeadFirst(WithFaultyPool):
    """The blocks of a sequence are freed in table order instead of last block first."""

    class pool_type(PagedPool):
        def release(self, blocks: Sequence[int]) -> None:
            free = len(self.free)
            super().release(blocks)
            self.free[free:] = self.free[free:][::-1]


@fault("paged-count-saturates", law="refcount_exact", seen=("mutant",))
class CountSaturates(WithFaultyPool):
    """Reference counts stop at two."""

    class pool_type(PagedPool):
        def hold(self, blocks: Sequence[int]) -> None:
            super().hold(blocks)
            for block in blocks:
                self.blocks[block].holders = min(2, self.blocks[block].holders)


@fault("paged-free-by-table", law="error_contract", seen=("LMCache#2559",))
class FreesByTable(PagedCache):
    """Freeing an unknown sequence raises KeyError."""

    def free(self, sequence: int) -> None:
        self._pool.release(self._tables.pop(sequence))
        del self._lengths[sequence]
