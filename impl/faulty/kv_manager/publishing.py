"""Faults of kv_manager: which blocks are published, and when."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key, KVManager


@fault("kv-abort-unwritten", law="prefix_soundness", seen=("vllm#41400",))
class AbortKeepsUnwritten(KVManager):
    """The whole prompt is published at admission, and an abort leaves the uncomputed part."""

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


@fault("kv-publishes-drafts", law="admission_honesty", seen=("sglang#24745",))
class PublishesDrafts(KVManager):
    """commit publishes rejected drafts as if they were computed."""

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


@fault("kv-hit-partial-block", law="prefix_soundness", seen=("atlas#692",))
class PartialBlockHit(KVManager):
    """finish publishes a last block that is not full, and a lookup hits it."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        full = request.computed // self.block_size
        if request.computed % self.block_size and request.table[full] not in self._key_of:
            key = (request.extra_key, tuple(request.tokens[: (full + 1) * self.block_size]))
            if key not in self._cached and len(key[1]) == (full + 1) * self.block_size:
                self._cached[key] = request.table[full]
                self._key_of[request.table[full]] = key
        super().finish(rid)


@fault("kv-publishes-uncomputed", law="prefix_soundness", seen=("sglang#24745",))
class PublishesUncomputed(KVManager):
    """finish publishes the last sampled token, which has no KV."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        known = min(len(request.tokens), len(request.table) * self.block_size)
        if known > request.computed:
            KVManager.commit(self, rid, known - request.computed)
        super().finish(rid)


@fault("kv-abort-publishes", law="prefix_soundness", seen=("mutant",))
class AbortPublishes(KVManager):
    """An abort in mid-prefill publishes the whole prompt as if it were computed."""

    def abort(self, rid: str) -> None:
        request = self._live[rid]
        known = min(len(request.tokens), len(request.table) * self.block_size)
        if known > request.computed:
            self.commit(rid, known - request.computed)
        super().abort(rid)


@fault("kv-swap-unheld", law="accounting", seen=("mini-sglang#142",))
class SwapsUnheld(KVManager):
    """At commit a duplicate is replaced by the published block, which gets no reference."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        published = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(published, request.computed // self.block_size):
            block = self._cached[(request.extra_key, tuple(request.tokens[: (i + 1) * self.block_size]))]
            if block != request.table[i]:
                self._drop(request.table[i])
                self._idle.pop(block, None)
                self._refs[block] = max(1, self._refs[block])
                request.table[i] = block


@fault("kv-duplicate-freed", law="eviction_safety", seen=("mini-sglang#142",))
class FreesDuplicateInUse(KVManager):
    """At commit a duplicate block is freed but stays in the request's table."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        published = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(published, request.computed // self.block_size):
            block = request.table[i]
            if block not in self._key_of and self._refs[block] == 1:
                self._free.append(block)


@fault("kv-commit-evicts-own", law="eviction_safety", seen=("TensorRT-LLM#17926",))
class CommitEvictsOwn(KVManager):
    """commit makes room first and may evict the oldest published block of its own request."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        own = [block for block in self._live[rid].table[:-1] if block in self._key_of]
        if own and not self._free and not self._idle:
            del self._cached[self._key_of.pop(own[0])]
            self._free.append(own[0])


@fault("kv-pads-zeros", law="prefix_soundness", seen=("mutant",))
class PadsWithZeros(KVManager):
    """finish publishes a partial last block as if it were padded with zero tokens."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        full, rest = divmod(request.computed, self.block_size)
        if rest and request.table[full] not in self._key_of and self._refs[request.table[full]] == 1:
            tokens = [*request.tokens[: request.computed], *[0] * (self.block_size - rest)]
            key: Key = (request.extra_key, tuple(tokens))
            if key not in self._cached:
                self._cached[key] = request.table[full]
                self._key_of[request.table[full]] = key
        super().finish(rid)


@fault("kv-swap-across-keys", law="content_equality", seen=("mutant",))
class SwapsAcrossKeys(KVManager):
    """At commit a block is replaced by one that has the same tokens but another extra key."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        first = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(first, request.computed // self.block_size):
            tokens = tuple(request.tokens[: (i + 1) * self.block_size])
            others = [b for (key, t), b in self._cached.items() if t == tokens and key != request.extra_key]
            if others:
                self._hold(others[0])
                self._drop(request.table[i])
                request.table[i] = others[0]


@fault("kv-commits-in-order", law="prefix_soundness", seen=("mutant",))
class CommitsInOrder(KVManager):
    """commit publishes the tokens of the request scheduled first, not of the one it names."""

    def reset(self) -> None:
        super().reset()
        self._order: list[str] = []

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        self._order += [rid] * (cached is not None)
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        self._order += [rid] * accepted
        return accepted

    def commit(self, rid: str, n: int) -> None:
        order = [name for name in self._order if name in self._live]
        request, first = self._live[rid], self._live[order[0]]
        self._order = order[1:]
        tokens = request.tokens
        if len(first.tokens) >= len(tokens):
            request.tokens = first.tokens
        super().commit(rid, n)
        request.tokens = tokens
