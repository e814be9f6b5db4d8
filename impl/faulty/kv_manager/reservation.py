"""Faults of kv_manager: reserving blocks for chunks, decodes and drafts."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-blocks-floored", law="coverage", seen=("TensorRT-LLM#16280",))
class FloorsBlocks(KVManager):
    """The number of blocks for a length is rounded down."""

    def _blocks_for(self, tokens: int) -> int:
        return max(1, tokens // self.block_size)


@fault("kv-append-one-block", law="coverage", seen=("ATOM#234 (b)",))
class OneTokenAppend(KVManager):
    """A reservation takes at most one block, however many tokens it is for."""

    def reserve(self, rid: str, n: int) -> bool:
        return super().reserve(rid, min(n, self.block_size))


@fault("kv-draft-tail-leaks", law="accounting", seen=("sglang#13826",))
class DraftTailLeaks(KVManager):
    """Blocks behind the accepted drafts are cut from the table but never freed."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        del request.table[self._blocks_for(request.computed) :]


@fault("kv-refused-reserve-takes", law="atomicity", seen=("Megatron-LM#6091",))
class ReservesHalf(KVManager):
    """A refused reservation keeps the blocks that it took before it failed."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if not accepted and self._free:
            self._live[rid].table += self._take(1)
        return accepted


@fault("kv-never-refuses", law="coverage", seen=("vllm#11565",))
class SaysYes(KVManager):
    """reserve never refuses and takes only the blocks that are there."""

    def reserve(self, rid: str, n: int) -> bool:
        if super().reserve(rid, n):
            return True
        self._live[rid].base = list(self._live[rid].table)
        return True


@fault("kv-chunk-absolute", law="coverage", seen=("LMCache#4921",))
class AbsoluteChunk(KVManager):
    """A later chunk gets blocks for its own length only, without the tokens before it."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        if request.computed >= len(request.tokens) - 1:
            return super().reserve(rid, n)
        if len(request.table) >= self._blocks_for(n) and n > 1:
            request.base = list(request.table)
            return True
        return super().reserve(rid, n)


@fault("kv-wide-drafts", law="accounting", seen=("mutant",))
class WideDraftsLeak(KVManager):
    """Rejected drafts over more than eight blocks lose their last block."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        if len(request.table) > self._blocks_for(request.computed) + 8:
            request.table.pop()


@fault("kv-computed-7-bits", law="coverage", seen=("mutant",))
class ComputedInSevenBits(KVManager):
    """The number of computed tokens is kept in seven bits."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._live[rid].computed &= 127


@fault("kv-rollback-forgets", law="atomicity", seen=("shape: a rollback goes too far",))
class RollbackForgets(KVManager):
    """A reservation that fails rolls the request back to an empty table."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if not accepted:
            self._live[rid].table = []
        return accepted


@fault("kv-rollback-anew", law="atomicity", seen=("shape: a rollback reallocates",))
class RollbackTakesAnew(KVManager):
    """A refused reservation frees earlier reserved blocks and takes new ones instead."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        request = self._live[rid]
        used = self._blocks_for(request.computed)
        if not accepted:
            ahead = request.table[used:]
            for block in ahead:
                self._drop(block)
            request.table[used:] = self._take(len(ahead))
        return accepted


@fault("kv-full-block-asserts", law="error_contract", seen=("nano-vllm#66",))
class FullBlockAsserts(KVManager):
    """Growing behind a full block raises AssertionError."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        assert request.table[(request.computed - 1) // self.block_size] not in self._key_of, "a hashed last block"
        return super().reserve(rid, n)


@fault("kv-draft-two-ends", law="coverage", seen=("TensorRT-LLM#16280",))
class TwoEndsOneBlock(KVManager):
    """Drafts that need two new blocks get only one."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        before, decode = len(request.table), len(request.tokens) == request.computed + 1
        if not super().reserve(rid, n):
            return False
        if decode and len(request.table) > before + 1:
            self._drop(request.table.pop())
        return True
