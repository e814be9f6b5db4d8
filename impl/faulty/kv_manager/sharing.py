"""Faults of kv_manager: forks, copies, reference counts, counters, questions."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import KVManager, Request


class ForkUncounted(KVManager):
    """A fork shares blocks without counting itself."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        for block in self._live[child].table:
            self._refs[block] -= self._refs[block] > 1
        return pairs


class ForkSharesList(KVManager):
    """Parent and child have one block table between them."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        if len(self._live[rid].table) == len(self._live[child].table):
            self._live[child].table = self._live[rid].table
        return pairs


class ForkLosesKey(KVManager):
    """A child has no extra key."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        self._live[child].extra_key = None
        return pairs


class ForkSharesTokens(KVManager):
    """What the child generates is added to the parent's tokens."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        self._live[child].tokens = self._live[rid].tokens
        return pairs


class ForkFull(KVManager):
    """A child starts with blocks of its own, and the copy stops at the last full one."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._live[rid]
        blocks, size = self._blocks_for(parent.computed), self.block_size
        if blocks > len(self._free) + len(self._idle):
            return None
        table = self._take(blocks)
        self._live[child] = Request(list(parent.tokens), parent.extra_key, table, parent.computed, list(table))
        copied = range(parent.computed // size * size)
        return [(parent.table[i // size] * size + i % size, table[i // size] * size + i % size) for i in copied]


class CopiesOneShort(KVManager):
    """The last computed slot of a block is not copied."""

    def copies(self) -> list[tuple[int, int]]:
        computed = {self._live[rid].computed % self.block_size for rid, _, _ in self._due}
        return [pair for pair in super().copies() if pair[0] % self.block_size + 1 not in computed]


class CopiesFirstSlot(KVManager):
    """Only the first slot of a block is copied."""

    def copies(self) -> list[tuple[int, int]]:
        return [pair for pair in super().copies() if pair[0] % self.block_size == 0]


class CopiesBackwards(KVManager):
    """Source and target are exchanged."""

    def copies(self) -> list[tuple[int, int]]:
        return [(target, source) for source, target in super().copies()]


class CopiesNothing(KVManager):
    """The tables change; the bytes stay."""

    def copies(self) -> list[tuple[int, int]]:
        return []


class CopyForMany(KVManager):
    """A block is copied on write only if three or more share it."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        first = request.computed // self.block_size
        pair = first < len(request.table) and self._refs[request.table[first]] == 2
        if not pair:
            return super().reserve(rid, n)
        block = request.table[first]
        self._refs[block] = 1
        accepted = super().reserve(rid, n)
        self._refs[block] = 2
        return accepted


class SharedFlag(KVManager):
    """A reference count of one bit: a third holder is not counted."""

    def _hold(self, block: int) -> None:
        super()._hold(block)
        self._refs[block] = min(self._refs[block], 2)


class SwapsUnheld(KVManager):
    """At commit a duplicate is replaced by the published block, which is not held for it."""

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


class FreesDuplicateInUse(KVManager):
    """At commit a duplicate is freed and stays in the request's table."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        published = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(published, request.computed // self.block_size):
            block = request.table[i]
            if block not in self._key_of and self._refs[block] == 1:
                self._free.append(block)


class AvailTwice(KVManager):
    """Idle blocks with a free neighbour are counted twice."""

    def avail(self) -> int:
        return super().avail() + self.block_size * any(block + 1 in self._free for block in self._idle)


class AvailStale(KVManager):
    """avail is what it was when somebody last asked with nothing live."""

    def reset(self) -> None:
        super().reset()
        self._last = self.total

    def avail(self) -> int:
        if not self._live:
            self._last = super().avail()
        return min(self._last, super().avail())

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached:
            self._last -= self.block_size
        return cached


class FreeNowCountsIdle(KVManager):
    """free_now counts what must be evicted first, and one block more."""

    def free_now(self) -> int:
        return super().free_now() + (len(self._idle) + 1) * self.block_size * bool(self._idle)


class FreeSlotsHeld(KVManager):
    """free_slots names the unwritten tail of live requests."""

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        for request in self._live.values():
            if request.computed % self.block_size:
                block = request.table[request.computed // self.block_size]
                free += [block * self.block_size + i for i in range(request.computed % self.block_size)]
        return free


class FreeSlotsCached(KVManager):
    """free_slots names cached blocks, which can still be hit."""

    def free_slots(self) -> Iterable[int] | None:
        cached = [block * self.block_size + i for block in self._idle for i in range(self.block_size)]
        return [*(super().free_slots() or ()), *cached]


class SlotsTouch(KVManager):
    """Asking for the slots of a request frees its reserved tail."""

    def slots(self, rid: str) -> list[int]:
        slots = super().slots(rid)
        request = self._live[rid]
        if request.base is not None and len(request.table) > self._blocks_for(len(request.tokens)):
            self._drop(request.table.pop())
        return slots


class LazyFinish(KVManager):
    """A finished request is taken apart by the next free_slots."""

    def reset(self) -> None:
        super().reset()
        self._later: list[str] = []

    def finish(self, rid: str) -> None:
        self._later.append(rid)

    def free_slots(self) -> Iterable[int] | None:
        for rid in self._later:
            super().finish(rid)
        self._later.clear()
        return super().free_slots()


class DriftsLate(KVManager):
    """With the third request that finishes a block is lost."""

    def reset(self) -> None:
        super().reset()
        self._count = 0

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self._count += 1
        if self._count == 3 and self._free:
            self._free.pop()


class NewRequestSharesTail(KVManager):
    """Two admissions of one step get the same last block."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        fresh = [r for name, r in self._live.items() if r.base is None and name != rid]
        if cached == 0 and fresh and len(self._live[rid].table) > 1 and fresh[-1].table:
            self._drop(self._live[rid].table[-1])
            self._live[rid].table[-1] = fresh[-1].table[-1]
            self._hold(fresh[-1].table[-1])
        return cached


class CopyForFew(KVManager):
    """A block that four or more share is written in place."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        first = request.computed // self.block_size
        if first >= len(request.table) or self._refs[request.table[first]] < 4:
            return super().reserve(rid, n)
        block = request.table[first]
        count, self._refs[block] = self._refs[block], 1
        accepted = super().reserve(rid, n)
        self._refs[block] = count
        return accepted


class CountsOthersCopies(KVManager):
    """Every due copy is taken off the holders of a block, also one that has another source."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        first = request.computed // self.block_size
        others = {source for _, source, _ in self._due} - set(request.table)
        if not others or first >= len(request.table) or self._refs[request.table[first]] < 2:
            return super().reserve(rid, n)
        block = request.table[first]
        self._refs[block] -= len(others)
        accepted = super().reserve(rid, n)
        self._refs[block] += len(others)
        return accepted


class WritesPublished(KVManager):
    """The source of a due copy is written in place by its last holder, and again, published, if that is withdrawn."""

    def reserve(self, rid: str, n: int) -> bool:
        sources = [source for _, source, _ in self._due]
        for source in sources:
            self._refs[source] -= 1
        accepted = super().reserve(rid, n)
        for source in sources:
            self._refs[source] += 1
        return accepted


class FreeNowCountsCached(KVManager):
    """free_now counts blocks that can still be hit."""

    def free_now(self) -> int:
        return self.avail()


class CopiesSixteen(KVManager):
    """A copy is at most 16 slots long."""

    def copies(self) -> list[tuple[int, int]]:
        return [pair for pair in super().copies() if pair[0] % self.block_size < 16]


FAULTS = faults_of(
    "kv_manager",
    ("kv-fork-uncounted", ForkUncounted, "a fork takes no reference", ("vllm#417",), "accounting"),
    ("kv-fork-one-list", ForkSharesList, "parent and child share a table object", ("vllm#417",), "eviction_safety"),
    ("kv-fork-loses-key", ForkLosesKey, "a child loses the adapter", ("LMCache#2961",), "prefix_soundness"),
    ("kv-fork-one-text", ForkSharesTokens, "parent and child share a token list", ("vllm#417",), "prefix_soundness"),
    ("kv-fork-copies-full", ForkFull, "a fork does not copy the last partial block", ("vllm#417",), "content_equality"),
    ("kv-copy-short", CopiesOneShort, "a copy lacks its last slot", ("LMCache#4921",), "content_equality"),
    ("kv-copy-first", CopiesFirstSlot, "a copy is one slot long", ("LMCache#4921",), "content_equality"),
    ("kv-copy-backwards", CopiesBackwards, "source and target exchanged", ("mutant",), "content_equality"),
    ("kv-copy-nothing", CopiesNothing, "copy-on-write without the bytes", ("seed 004",), "content_equality"),
    ("kv-copy-for-many", CopyForMany, "two sharers write in place", ("atlas#692",), "write_isolation"),
    ("kv-copy-for-few", CopyForFew, "four sharers write in place", ("mutant",), "write_isolation"),
    ("kv-copy-of-others", CountsOthersCopies, "another's copy is counted off", ("mutant",), "write_isolation"),
    ("kv-copy-withdrawn", WritesPublished, "a published block is written", ("mutant",), "prefix_soundness"),
    ("kv-copy-sixteen", CopiesSixteen, "a copy is at most 16 slots", ("LMCache#4921",), "content_equality"),
    ("kv-refs-one-bit", SharedFlag, "a third holder is not counted", ("mutant",), "accounting"),
    ("kv-swap-unheld", SwapsUnheld, "a swapped-in block is not held", ("mini-sglang#142",), "accounting"),
    ("kv-duplicate-freed", FreesDuplicateInUse, "a duplicate in use is freed", ("mini-sglang#142",), "eviction_safety"),
    ("kv-avail-twice", AvailTwice, "a block is counted twice", ("mutant",), "leak_freedom"),
    ("kv-avail-drifts", AvailStale, "a counter of its own drifts", ("xllm#829",), "accounting"),
    ("kv-free-now-more", FreeNowCountsIdle, "free_now exceeds avail", ("mutant",), "free_count"),
    ("kv-free-now-cached", FreeNowCountsCached, "free_now counts cached blocks", ("mutant",), "free_count"),
    ("kv-free-slots-held", FreeSlotsHeld, "held slots are named free", ("mutant",), "eviction_safety"),
    ("kv-free-slots-cached", FreeSlotsCached, "cached slots are named free", ("mutant",), "prefix_soundness"),
    ("kv-slots-touch", SlotsTouch, "a question frees blocks", ("rule 12",), "coverage"),
    ("kv-lazy-finish", LazyFinish, "a question does the work", ("rule 12",), "purity"),
    ("kv-drifts-late", DriftsLate, "a block is lost with the third request", ("sglang#13826",), "leak_freedom"),
    ("kv-one-tail", NewRequestSharesTail, "two requests of a step share a block", ("mutant",), "no_aliasing"),
)
