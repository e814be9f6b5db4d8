"""Faults of kv_manager: what the end of a request gives back."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-double-release", law="no_double_free", seen=("vllm#42571",))
class DoubleRelease(KVManager):
    """finish releases the first block twice, so it is handed out twice."""

    def finish(self, rid: str) -> None:
        first = self._live[rid].table[:1]
        super().finish(rid)
        self._free += [block for block in first if block in self._free]


@fault("kv-abort-leaks", law="leak_freedom", seen=("sglang#36926",))
class LosesOnAbort(KVManager):
    """abort does not release the last block of the request."""

    def abort(self, rid: str) -> None:
        del self._live[rid].table[-1:]
        self.finish(rid)


@fault("kv-finish-by-tokens", law="leak_freedom", seen=("sglang#37295",))
class FinishByTokens(KVManager):
    """finish frees as many blocks as the known tokens need, not all blocks of the table."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        del request.table[self._blocks_for(len(request.tokens)) :]
        super().finish(rid)


@fault("kv-64-blocks", law="leak_freedom", seen=("mutant",))
class SixtyFour(KVManager):
    """The free list is a mask of 64 bits, so higher blocks are lost when they are freed."""

    def _drop(self, block: int) -> None:
        super()._drop(block)
        if block >= 64 and block in self._free:
            self._free.remove(block)


@fault("kv-drifts-late", law="leak_freedom", seen=("sglang#13826",))
class DriftsLate(KVManager):
    """The third request to finish loses a block."""

    def reset(self) -> None:
        super().reset()
        self._count = 0

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self._count += 1
        if self._count == 3 and self._free:
            self._free.pop()


@fault("kv-published-only", law="accounting", seen=("TensorRT-LLM#15018",))
class PublishedOnly(KVManager):
    """abort releases only the published blocks of a request."""

    def abort(self, rid: str) -> None:
        request = self._live[rid]
        request.table = [block for block in request.table if block in self._key_of]
        super().abort(rid)


@fault("kv-short-finish-leaks", law="leak_freedom", seen=("sglang#10871",))
class ShortFinishLeaks(KVManager):
    """A request that finishes after its first chunk does not release its last block."""

    def reset(self) -> None:
        super().reset()
        self._went_on: set[str] = set()

    def reserve(self, rid: str, n: int) -> bool:
        self._went_on.add(rid)
        return super().reserve(rid, n)

    def finish(self, rid: str) -> None:
        if rid not in self._went_on and len(self._live[rid].table) > 1:
            self._live[rid].table.pop()
        super().finish(rid)


@fault("kv-refused-chunk-vanishes", law="leak_freedom", seen=("sglang-jax#1400",))
class RefusedChunkVanishes(KVManager):
    """A request whose chunk is refused is dropped, and its blocks are never freed."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        request = self._live[rid]
        if not accepted and request.computed + 1 < len(request.tokens):
            request.table = []
        return accepted


@fault("kv-recorded-in-tokens", law="leak_freedom", seen=("sglang#31616",))
class ChunkedTailRecorded(KVManager):
    """A request's memory is recorded in tokens, so the rest of its last block is never freed."""

    def reset(self) -> None:
        super().reset()
        self._recorded: dict[str, int] = {}

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if accepted:
            self._recorded[rid] = self._live[rid].computed + n
        return accepted

    def finish(self, rid: str) -> None:
        if rid in self._recorded:
            del self._live[rid].table[self._recorded[rid] // self.block_size + 1 :]
            if self._recorded[rid] % self.block_size == 1:
                self._live[rid].table.pop()
        super().finish(rid)


@fault("kv-tenth-live", law="accounting", seen=("mutant",))
class TenthOfMany(KVManager):
    """With ten requests live, a request that ends does not release its last block."""

    def finish(self, rid: str) -> None:
        if len(self._live) > 9:
            self._live[rid].table.pop()
        super().finish(rid)


@fault("kv-boundary-page", law="no_double_free", seen=("sglang#38840",))
class BoundaryPageTwice(KVManager):
    """Prompt and output are freed separately, so the block that both share is freed twice."""

    def reset(self) -> None:
        super().reset()
        self._prompt: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._prompt[rid] = len(tokens)
        return super().admit(rid, tokens, extra_key, n)

    def finish(self, rid: str) -> None:
        request, prompt = self._live[rid], self._prompt.get(rid, 0)
        super().finish(rid)
        if prompt % self.block_size and request.computed > prompt:
            shared = request.table[prompt // self.block_size]
            if shared in self._free:
                self._free.append(shared)


@fault("kv-abort-forgets-shared", law="eviction_safety", seen=("mutant",))
class AbortForgetsShared(KVManager):
    """An abort unpublishes its blocks and frees them even if other requests hold them."""

    def abort(self, rid: str) -> None:
        table = self._live[rid].table
        super().abort(rid)
        for block in table:
            if block in self._key_of and block not in self._idle:
                del self._cached[self._key_of.pop(block)]
                self._free.append(block)
