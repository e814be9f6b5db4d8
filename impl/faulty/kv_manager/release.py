"""Faults of kv_manager: who gives a block back, when, and what of it is remembered."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import KVManager, Request


class HitHeldTwice(KVManager):
    """A hit of several blocks takes a reference for the lookup and one for the request; one is given back."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached > self.block_size:
            for block in self._live[rid].table[: cached // self.block_size]:
                self._hold(block)
        return cached


class WithdrawKeepsHit(KVManager):
    """Withdrawing an admission gives its new blocks back; the lookup's pins stay."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        if request.base is None:
            del request.table[: request.computed // self.block_size]
        super().withdraw(rid)


class DeferredByName(KVManager):
    """The blocks of a preempted request are freed a little later, looked up by its name."""

    def reset(self) -> None:
        super().reset()
        self._former: dict[str, list[int]] = {}

    def preempt(self, rid: str) -> None:
        self._former[rid] = self._live.pop(rid).table

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        for other in [name for name in self._former if name != rid]:
            self._free_former(other)
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None and rid in self._former:
            self._free_former(rid)
            cached = super().admit(rid, tokens, extra_key, n)
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        for name in list(self._former):
            self._free_former(name)
        return super().reserve(rid, n)

    def launch(self) -> None:
        super().launch()
        for name in list(self._former):
            self._free_former(name)

    def _free_former(self, name: str) -> None:
        table = self._former.pop(name)
        for block in reversed(self._live[name].table if name in self._live else table):
            self._drop(block)

    def avail(self) -> int:
        waiting = [block for table in self._former.values() for block in table]
        return super().avail() + sum(self._refs[b] == waiting.count(b) for b in set(waiting)) * self.block_size

    def evict_all(self) -> None:
        for name in list(self._former):
            self._free_former(name)
        super().evict_all()


class ResetKeepsQueue(KVManager):
    """A finished request is released with the next admission; a reset leaves it waiting."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._waiting: list[int] = []
        super().__init__(blocks, block_size)

    def finish(self, rid: str) -> None:
        self._waiting += [b for b in self._live[rid].table if self._refs[b] == 1 and b not in self._key_of]
        self._live[rid].table = [b for b in self._live[rid].table if b not in self._waiting]
        super().finish(rid)

    def avail(self) -> int:
        return min(super().avail() + len(self._waiting) * self.block_size, self.total)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._free += self._waiting
        self._waiting.clear()
        return super().admit(rid, tokens, extra_key, n)

    def reserve(self, rid: str, n: int) -> bool:
        self._free += self._waiting
        self._waiting.clear()
        return super().reserve(rid, n)

    def evict_all(self) -> None:
        self._free += self._waiting
        self._waiting.clear()
        super().evict_all()


class KeyOfStays(KVManager):
    """Eviction takes the index entry and leaves the block its key."""

    def _evict(self, block: int) -> None:
        del self._idle[block]
        del self._cached[self._key_of[block]]
        self._free.append(block)


class EvictDropsTwin(KVManager):
    """The cache counts itself on the block that was computed last, and names the one computed first."""

    def reset(self) -> None:
        super().reset()
        self._twin: dict[int, int] = {}

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        first = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(first, request.computed // self.block_size):
            named = self._cached[self._key(request.extra_key, request.tokens[: (i + 1) * self.block_size])]
            if named != request.table[i]:
                self._twin[named] = request.table[i]

    def _evict(self, block: int) -> None:
        super()._evict(block)
        twin = self._twin.pop(block, None)
        if twin is not None and self._refs[twin]:
            self._drop(twin)


class PublishedOnly(KVManager):
    """The end of a request goes over its published blocks; what was never published stays taken."""

    def abort(self, rid: str) -> None:
        request = self._live[rid]
        request.table = [block for block in request.table if block in self._key_of]
        super().abort(rid)


class ShortFinishLeaks(KVManager):
    """A request that is done with its first chunk ends on a path of its own, which forgets its last block."""

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


class CommitEvictsOwn(KVManager):
    """Publishing makes room first, and with nothing idle it takes the oldest published block: the request's own."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        own = [block for block in self._live[rid].table[:-1] if block in self._key_of]
        if own and not self._free and not self._idle:
            del self._cached[self._key_of.pop(own[0])]
            self._free.append(own[0])


class RefusedChunkVanishes(KVManager):
    """A chunk that does not fit drops out of the batch; nobody has its blocks any more."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        request = self._live[rid]
        if not accepted and request.computed + 1 < len(request.tokens):
            request.table = []
        return accepted


class ChunkedTailRecorded(KVManager):
    """What a request has is recorded in tokens, though the allocator hands out blocks."""

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


class SourceNotHeld(KVManager):
    """The block that a copy reads gives its reference up when the copy is planned, and is counted free twice over."""

    def reserve(self, rid: str, n: int) -> bool:
        planned = len(self._due)
        accepted = super().reserve(rid, n)
        for _, source, _ in self._due[planned:]:
            self._drop(source)
        return accepted


class CopiesTwice(KVManager):
    """The pairs of a step are answered again in the next one."""

    def reset(self) -> None:
        super().reset()
        self._last: list[tuple[int, int]] = []

    def copies(self) -> list[tuple[int, int]]:
        now = super().copies()
        again, self._last = self._last, now
        targets = {target for _, target in now}
        return now + [pair for pair in again if pair[1] not in targets]


class PartlyLoaded(KVManager):
    """A hit is copied into blocks of the request's own; of several the last one does not arrive, and counts."""

    copies_at_admit = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        while hit and self._blocks_for(len(tokens)) > len(self._free) + sum(b not in hit for b in self._idle):
            hit.pop()
        cached = len(hit) * self.block_size
        need = self._blocks_for(min(cached + n, len(tokens)))
        if need > len(self._free) + sum(block not in hit for block in self._idle):
            return None
        for block in hit:
            self._hold(block)
        table = self._take(need)
        for source, target in zip(hit, table, strict=False):
            self._due.append((rid, source, target))
        for _, source, _ in self._due[-1:] if len(hit) > 1 else []:
            self._drop(source)
            self._due.pop()
        self._live[rid] = Request(list(tokens), extra_key, table, cached)
        return cached

    def withdraw(self, rid: str) -> None:
        for _, source, _ in [due for due in self._due if due[0] == rid and self._live[rid].base is None]:
            self._drop(source)
        if self._live[rid].base is None:
            self._due = [due for due in self._due if due[0] != rid]
        super().withdraw(rid)


class SourceTakenBack(SourceNotHeld):
    """The source of a due copy is let go at once, and taken back at a withdrawal though another may have it."""

    def launch(self) -> None:
        self._due.clear()

    def withdraw(self, rid: str) -> None:
        for _, source, _ in [due for due in self._due if due[0] == rid]:
            if source in self._free:
                self._free.remove(source)
            self._hold(source)
        super().withdraw(rid)


class NamesakesCopies(KVManager):
    """Withdrawing a request drops the due copies of all whose names begin with its own."""

    def withdraw(self, rid: str) -> None:
        super().withdraw(rid)
        for _, source, _ in [due for due in self._due if due[0].startswith(rid)]:
            self._drop(source)
        self._due = [due for due in self._due if not due[0].startswith(rid)]


class WideDraftsLeak(KVManager):
    """Of rejected drafts over more than eight blocks the last block is lost."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        if len(request.table) > self._blocks_for(request.computed) + 8:
            request.table.pop()


class TenthOfMany(KVManager):
    """With ten requests live, the one that ends forgets its last block."""

    def finish(self, rid: str) -> None:
        if len(self._live) > 9:
            self._live[rid].table.pop()
        super().finish(rid)


FAULTS = faults_of(
    "kv_manager",
    ("kv-hit-held-twice", HitHeldTwice, "the lookup's own reference stays", ("LMCache#3884",), "leak_freedom"),
    ("kv-withdraw-keeps-hit", WithdrawKeepsHit, "a withdrawn hit stays pinned", ("LMCache#2785",), "leak_freedom"),
    ("kv-deferred-by-name", DeferredByName, "a deferred free resolves late", ("sglang#36135",), "accounting"),
    ("kv-reset-keeps-queue", ResetKeepsQueue, "a release from before the reset", ("sglang#26009",), "no_double_free"),
    ("kv-key-of-stays", KeyOfStays, "a reused block has its old key", ("kvcached#362",), "error_contract"),
    ("kv-evict-drops-twin", EvictDropsTwin, "the reference is the twin's", ("atlas#373 (c)",), "accounting"),
    ("kv-published-only", PublishedOnly, "ended before it was stored", ("TensorRT-LLM#15018",), "accounting"),
    ("kv-short-finish-leaks", ShortFinishLeaks, "done in its first chunk", ("sglang#10871",), "leak_freedom"),
    ("kv-commit-evicts-own", CommitEvictsOwn, "commit evicts its own", ("TensorRT-LLM#17926",), "eviction_safety"),
    (
        "kv-refused-chunk-vanishes",
        RefusedChunkVanishes,
        "a refused chunk is lost",
        ("sglang-jax#1400",),
        "leak_freedom",
    ),
    ("kv-recorded-in-tokens", ChunkedTailRecorded, "recorded in tokens", ("sglang#31616",), "leak_freedom"),
    ("kv-source-unheld", SourceNotHeld, "a copy's source is not held", ("TensorRT-LLM#12892",), "accounting"),
    ("kv-copies-twice", CopiesTwice, "a copy is made again later", ("mutant",), "content_equality"),
    ("kv-source-taken-back", SourceTakenBack, "a withdrawn copy's source", ("mutant",), "prefix_soundness"),
    ("kv-namesakes-copies", NamesakesCopies, "r1 is taken for r10, too", ("mutant",), "content_equality"),
    ("kv-wide-drafts", WideDraftsLeak, "drafts over many blocks", ("mutant",), "accounting"),
    ("kv-tenth-live", TenthOfMany, "ten requests are live", ("mutant",), "accounting"),
    ("kv-partly-loaded", PartlyLoaded, "a hit that did not all arrive", ("LMCache#2898",), "prefix_soundness"),
)
