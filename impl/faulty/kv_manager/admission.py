"""Faults of kv_manager: admission."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager, Request


@fault("kv-refusal-keeps-hit", law="atomicity", seen=("atlas#373 (b)",))
class RefusalKeepsHit(KVManager):
    """A refused admission keeps the references that it took on its hit."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None:
            for block in self._lookup(tokens, extra_key):
                self._hold(block)
        return cached


@fault("kv-refuses-half", law="admission_honesty", seen=("FastDeploy#5544",))
class RefusesAtHalf(KVManager):
    """An admission is refused if its prompt needs more than half of the pool."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        if 2 * self._blocks_for(len(tokens)) > self._blocks + 1:
            return None
        return super().admit(rid, tokens, extra_key, n)


@fault("kv-hangs-when-full", law="termination", seen=("FastDeploy#5544",))
class HangsWhenFull(KVManager):
    """An admission that finds nothing to evict never returns."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        while cached is None and len(self._live) > 0:
            cached = super().admit(rid, tokens, extra_key, n)
        return cached


@fault("kv-admits-too-much", law="coverage", seen=("vllm#11565",))
class AdmitsTooMuch(KVManager):
    """Admission counts the blocks of the hit as free for the rest of the prompt."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        need = self._blocks_for(min(len(hit) * self.block_size + n, len(tokens))) - len(hit)
        if need > len(self._free) + len(self._idle):
            return None
        for block in hit:
            self._hold(block)
        new = self._take(min(need, len(self._free) + len(self._idle)))
        self._live[rid] = Request(list(tokens), extra_key, hit + new, len(hit) * self.block_size)
        return len(hit) * self.block_size


@fault("kv-chunked-twice", law="admission_honesty", seen=("sglang#30295",))
class ChunkedCountsTwice(KVManager):
    """A request in mid-prefill is counted twice at admission, so a prompt that fits is refused."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        chunked = sum(len(r.table) for r in self._live.values() if r.computed + 1 < len(r.tokens) and r.base)
        if self._blocks_for(len(tokens)) + chunked > len(self._free) + len(self._idle):
            return None
        return super().admit(rid, tokens, extra_key, n)
