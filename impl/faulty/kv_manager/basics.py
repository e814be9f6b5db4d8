"""Faults of kv_manager: the reference block manager, wrong in one place."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import KVManager, Request


class AbortKeepsUnwritten(KVManager):
    """Publishes the whole prompt at admission; an abort before it is computed leaves it cached."""

    early_publish = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            request = self._live[rid]
            for i, block in enumerate(request.table):
                key = (extra_key, tuple(tokens[: (i + 1) * self.block_size]))
                if len(key[1]) == (i + 1) * self.block_size and key not in self._cached and block not in self._key_of:
                    self._cached[key] = block
                    self._key_of[block] = key
        return cached


class HitOneTooMany(KVManager):
    """Counts one token more than the hit blocks hold."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached + 1 < len(tokens):
            self._live[rid].computed += 1
            return cached + 1
        return cached


class DoubleRelease(KVManager):
    """finish releases the first block twice, so that it is handed out twice."""

    def finish(self, rid: str) -> None:
        first = self._live[rid].table[:1]
        super().finish(rid)
        self._free += [block for block in first if block in self._free]


class GhostKey(KVManager):
    """A block that is taken again keeps its former key."""

    def _evict(self, block: int) -> None:
        del self._idle[block]
        self._free.append(block)


class SelfEvictedHit(KVManager):
    """New blocks are taken before the hit is held."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        end = min(len(hit) * self.block_size + n, len(tokens))
        need = self._blocks_for(end) - len(hit)
        if need > len(self._free) + len(self._idle):
            return None
        new = self._take(need)
        for block in hit:
            self._hold(block)
        self._live[rid] = Request(list(tokens), extra_key, hit + new, len(hit) * self.block_size)
        return len(hit) * self.block_size


class ForkWithoutCopy(KVManager):
    """A shared partial block is written in place."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        need = max(0, self._blocks_for(request.computed + n) - len(request.table))
        if need > len(self._free) + len(self._idle):
            return False
        request.base = list(request.table)
        request.table += self._take(need)
        return True


class LosesOnAbort(KVManager):
    """abort forgets the last block."""

    def abort(self, rid: str) -> None:
        del self._live[rid].table[-1:]
        self.finish(rid)


class RefusalKeepsHit(KVManager):
    """A refused admission keeps the references on its hit."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None:
            for block in self._lookup(tokens, extra_key):
                self._hold(block)
        return cached


class ResetKeepsCache(KVManager):
    """reset forgets requests and free blocks, not what was published."""

    def reset(self) -> None:
        cached, keys = getattr(self, "_cached", {}), getattr(self, "_key_of", {})
        super().reset()
        self._cached, self._key_of = cached, keys


class RefusesAtHalf(KVManager):
    """Never fills more than half of the pool."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        if 2 * self._blocks_for(len(tokens)) > self._blocks + 1:
            return None
        return super().admit(rid, tokens, extra_key, n)


class AvailFlushes(KVManager):
    """Finished requests give their blocks back only when avail is asked."""

    def reset(self) -> None:
        super().reset()
        self._later: list[str] = []

    def finish(self, rid: str) -> None:
        self._later.append(rid)

    def avail(self) -> int:
        for rid in self._later:
            super().finish(rid)
        self._later.clear()
        return super().avail()


class PublishesDrafts(KVManager):
    """commit counts rejected drafts as computed when it publishes."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if accepted and n > 1:
            self._drafted = getattr(self, "_drafted", {})
            self._drafted[rid] = n
        return accepted

    def commit(self, rid: str, n: int) -> None:
        reserved = getattr(self, "_drafted", {}).pop(rid, n)
        if reserved > n:
            self._live[rid].computed += 1
        super().commit(rid, n)


class HangsWhenFull(KVManager):
    """An admission that finds nothing to evict tries forever."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        while cached is None and len(self._live) > 0:
            cached = super().admit(rid, tokens, extra_key, n)
        return cached


FAULTS = faults_of(
    "kv_manager",
    (
        "kv-abort-unwritten",
        AbortKeepsUnwritten,
        "abort leaves unwritten KV cached",
        ("vllm#41400",),
        "prefix_soundness",
    ),
    ("kv-hit-plus-one", HitOneTooMany, "a hit counts one token too many", ("vllm#11186",), "prefix_soundness"),
    ("kv-double-release", DoubleRelease, "one block, two releases", ("vllm#42571",), "no_double_free"),
    ("kv-ghost-key", GhostKey, "the index outlives the content", ("nano-vllm#163",), "write_isolation"),
    (
        "kv-self-evicted-hit",
        SelfEvictedHit,
        "a hit is evicted by its own allocation",
        ("vllm#10507", "vllm#33775"),
        "content_equality",
    ),
    ("kv-fork-no-copy", ForkWithoutCopy, "a shared block is written", ("vllm#417", "atlas#692"), "write_isolation"),
    ("kv-abort-leaks", LosesOnAbort, "abort forgets a block", ("sglang#36926",), "leak_freedom"),
    ("kv-refusal-keeps-hit", RefusalKeepsHit, "a refused admission keeps references", ("atlas#373 (b)",), "atomicity"),
    ("kv-reset-keeps-cache", ResetKeepsCache, "reset leaves the index", ("vllm#57727",), "content_equality"),
    ("kv-refuses-half", RefusesAtHalf, "refuses what would fit", ("FastDeploy#5544",), "admission_honesty"),
    ("kv-avail-flushes", AvailFlushes, "a question does work", ("rule 12",), "purity"),
    (
        "kv-publishes-drafts",
        PublishesDrafts,
        "a rejected draft counts as computed",
        ("sglang#24745",),
        "admission_honesty",
    ),
    ("kv-hangs-when-full", HangsWhenFull, "admission never returns", ("FastDeploy#5544",), "termination"),
)
