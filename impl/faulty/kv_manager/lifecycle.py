"""Faults of kv_manager: admission, chunks, drafts, preemption, withdrawal, abort, reset."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import KVManager, Request


class PreemptLeaks(KVManager):
    """The request is put aside with its last block."""

    def preempt(self, rid: str) -> None:
        self._live[rid].table.pop()
        super().preempt(rid)


class ResumeKeepsTable(KVManager):
    """A preempted request gets its former blocks back, though it gave them up."""

    def reset(self) -> None:
        super().reset()
        self._former: dict[str, Request] = {}

    def preempt(self, rid: str) -> None:
        self._former[rid] = self._live[rid]
        super().preempt(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        former = self._former.pop(rid, None)
        cached = super().admit(rid, tokens, extra_key, n)
        if former is not None and cached is not None and former.computed > cached:
            self._live[rid].table[: len(former.table)] = former.table[: len(self._live[rid].table)]
        return cached


class ResumeForgetsTokens(KVManager):
    """A resumed request is published under its prompt, without what it had generated."""

    def reset(self) -> None:
        super().reset()
        self._prompt: dict[str, int] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        prompt = self._prompt.setdefault(rid, len(tokens))
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and len(tokens) > prompt:
            self._live[rid].tokens[prompt:] = [tokens[0]] * (len(tokens) - prompt)
        return cached


class WithdrawLeaks(KVManager):
    """A withdrawn reservation keeps its new blocks out of the free list."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        if request.base is not None:
            del request.table[len(request.base) + 1 :]
        super().withdraw(rid)


class WithdrawKeepsCopy(KVManager):
    """The due copy of a withdrawn reservation is made all the same."""

    def withdraw(self, rid: str) -> None:
        due = [entry for entry in self._due if entry[0] == rid]
        super().withdraw(rid)
        self._due += due
        for _, source, _ in due:
            self._hold(source)


class WithdrawStaysPublished(KVManager):
    """Publishes at admission, and a withdrawal leaves it published."""

    early_publish = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            request = self._live[rid]
            for i in range(cached // self.block_size, min(cached + n, len(tokens)) // self.block_size):
                key = (extra_key, tuple(tokens[: (i + 1) * self.block_size]))
                if key not in self._cached:
                    self._cached[key] = request.table[i]
                    self._key_of[request.table[i]] = key
        return cached


class FloorsBlocks(KVManager):
    """The blocks that a length needs are rounded down."""

    def _blocks_for(self, tokens: int) -> int:
        return max(1, tokens // self.block_size)


class OneTokenAppend(KVManager):
    """A reservation takes at most one block, however many tokens it is for."""

    def reserve(self, rid: str, n: int) -> bool:
        return super().reserve(rid, min(n, self.block_size))


class DraftTailLeaks(KVManager):
    """After a decode with drafts the table is cut to what was accepted, and the rest forgotten."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        del request.table[self._blocks_for(request.computed) :]


class ReservesHalf(KVManager):
    """A refused reservation keeps what it had taken."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if not accepted and self._free:
            self._live[rid].table += self._take(1)
        return accepted


class SaysYes(KVManager):
    """reserve never refuses, and takes what there is."""

    def reserve(self, rid: str, n: int) -> bool:
        if super().reserve(rid, n):
            return True
        self._live[rid].base = list(self._live[rid].table)
        return True


class AdmitsTooMuch(KVManager):
    """Admission counts the hit blocks as free for the rest of the prompt."""

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


class AbortPublishes(KVManager):
    """An abort in mid-prefill publishes the prompt as if it were computed."""

    def abort(self, rid: str) -> None:
        request = self._live[rid]
        known = min(len(request.tokens), len(request.table) * self.block_size)
        if known > request.computed:
            self.commit(rid, known - request.computed)
        super().abort(rid)


class ResetKeepsLive(KVManager):
    """reset forgets the cache; the blocks of live requests stay taken."""

    def reset(self) -> None:
        held = [block for request in getattr(self, "_live", {}).values() for block in request.table]
        super().reset()
        self._free = [block for block in self._free if block not in held]


class EvictsHeld(KVManager):
    """evict_all drops what is published, held or not."""

    def evict_all(self) -> None:
        super().evict_all()
        for block in list(self._key_of):
            del self._cached[self._key_of.pop(block)]
            self._free.append(block)


class EvictsAllButOne(KVManager):
    """evict_all leaves the most recent block."""

    def evict_all(self) -> None:
        for block in list(self._idle)[:-1]:
            self._evict(block)


class EvictsReferenced(KVManager):
    """With no free block left, the least recently published one is taken, even if a request holds it."""

    def _take(self, n: int) -> list[int]:
        if not self._free and self._key_of and len(self._idle) > 0:
            block = next(iter(self._key_of))
            self._idle.pop(block, None)
            del self._cached[self._key_of.pop(block)]
            self._free.append(block)
        return super()._take(n)


class OwnHitFreed(KVManager):
    """An admission that hits lets go of the last hit block right away."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached >= 2 * self.block_size:
            self._drop(self._live[rid].table[cached // self.block_size - 1])
        return cached


class FinishByTokens(KVManager):
    """finish frees the blocks of the known tokens, not those of the table."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        del request.table[self._blocks_for(len(request.tokens)) :]
        super().finish(rid)


class SixtyFour(KVManager):
    """The free list is a mask of 64 bits: a higher block that comes back is lost."""

    def _drop(self, block: int) -> None:
        super()._drop(block)
        if block >= 64 and block in self._free:
            self._free.remove(block)


class LongTablesCut(KVManager):
    """A table keeps eight blocks."""

    def slots(self, rid: str) -> list[int]:
        return super().slots(rid)[: 8 * self.block_size]


class AbsoluteChunk(KVManager):
    """A chunk is allocated by its own length, not behind what is computed."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        if request.computed >= len(request.tokens) - 1:
            return super().reserve(rid, n)
        if len(request.table) >= self._blocks_for(n) and n > 1:
            request.base = list(request.table)
            return True
        return super().reserve(rid, n)


class ResetKeepsIdle(KVManager):
    """A reset ends the live requests and leaves what is cached for nobody."""

    def reset(self) -> None:
        if not hasattr(self, "_live"):
            super().reset()
        for rid in list(self._live):
            self.finish(rid)


class ResetMovesOn(KVManager):
    """A reset makes a second pool behind the first, and the memory of the first stays where it is."""

    _resets = -1

    def reset(self) -> None:
        super().reset()
        self._resets += 1

    def slots(self, rid: str) -> list[int]:
        return self._moved(super().slots(rid))

    def free_slots(self) -> Iterable[int] | None:
        return self._moved(super().free_slots() or ())

    def copies(self) -> list[tuple[int, int]]:
        pairs = super().copies()
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        return list(zip(self._moved(sources), self._moved(targets), strict=True))

    def _moved(self, slots: Iterable[int]) -> list[int]:
        return [slot + self._resets * self.total for slot in slots]


class ListsFreedTwice(KVManager):
    """The list of free slots has those of the request that ended last once more."""

    _ended: tuple[int, ...] = ()

    def finish(self, rid: str) -> None:
        self._ended = tuple(self.slots(rid))
        super().finish(rid)

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        return free + [slot for slot in self._ended if slot in free]


FAULTS = faults_of(
    "kv_manager",
    ("kv-preempt-leaks", PreemptLeaks, "preemption forgets a block", ("mutant",), "accounting"),
    (
        "kv-resume-old-table",
        ResumeKeepsTable,
        "a resumed request gets freed blocks",
        ("vllm-rbln#676",),
        "leak_freedom",
    ),
    (
        "kv-resume-short-key",
        ResumeForgetsTokens,
        "a resume publishes under other tokens",
        ("mutant",),
        "prefix_soundness",
    ),
    ("kv-withdraw-leaks", WithdrawLeaks, "a withdrawn reservation leaks", ("mutant",), "accounting"),
    ("kv-withdraw-copies", WithdrawKeepsCopy, "a withdrawn copy is made", ("mutant",), "leak_freedom"),
    (
        "kv-withdraw-published",
        WithdrawStaysPublished,
        "what is withdrawn stays published",
        ("vllm#41400",),
        "prefix_soundness",
    ),
    ("kv-blocks-floored", FloorsBlocks, "a length is rounded down to blocks", ("TensorRT-LLM#16280",), "coverage"),
    ("kv-append-one-block", OneTokenAppend, "several tokens, one block", ("ATOM#234 (b)",), "coverage"),
    ("kv-draft-tail-leaks", DraftTailLeaks, "the tail behind accepted drafts leaks", ("sglang#13826",), "accounting"),
    (
        "kv-refused-reserve-takes",
        ReservesHalf,
        "a refused reservation keeps a block",
        ("Megatron-LM#6091",),
        "atomicity",
    ),
    ("kv-never-refuses", SaysYes, "accepted without slots", ("vllm#11565",), "coverage"),
    ("kv-admits-too-much", AdmitsTooMuch, "the hit is counted as free", ("vllm#11565",), "coverage"),
    (
        "kv-abort-publishes",
        AbortPublishes,
        "abort publishes what was not computed",
        ("mutant",),
        "prefix_soundness",
    ),
    (
        "kv-reset-keeps-live",
        ResetKeepsLive,
        "reset loses the blocks of live requests",
        ("sglang#12099",),
        "reset_complete",
    ),
    (
        "kv-evicts-held",
        EvictsHeld,
        "evict_all takes held blocks",
        ("LMCache#3130", "atlas#373 (a)"),
        "eviction_complete",
    ),
    ("kv-evicts-all-but-one", EvictsAllButOne, "evict_all stops early", ("ik_llama.cpp#2320",), "eviction_complete"),
    (
        "kv-evicts-referenced",
        EvictsReferenced,
        "a held block is evicted",
        ("LMCache#987", "mini-sglang#52"),
        "eviction_safety",
    ),
    ("kv-own-hit-freed", OwnHitFreed, "a hit block is not held", ("vllm#41400",), "accounting"),
    (
        "kv-finish-by-tokens",
        FinishByTokens,
        "finish derives the blocks from the tokens",
        ("sglang#37295",),
        "leak_freedom",
    ),
    ("kv-64-blocks", SixtyFour, "blocks from 64 on do not come back", ("mutant",), "leak_freedom"),
    ("kv-table-cut", LongTablesCut, "a long table is cut", ("mutant",), "coverage"),
    (
        "kv-chunk-absolute",
        AbsoluteChunk,
        "a later chunk is allocated as if it were the first",
        ("LMCache#4921",),
        "coverage",
    ),
    ("kv-reset-keeps-idle", ResetKeepsIdle, "reset leaves the cache", ("vllm#57727",), "reset_complete"),
    ("kv-reset-moves-on", ResetMovesOn, "the pool grows with each reset", ("mutant",), "conservation"),
    ("kv-lists-freed-twice", ListsFreedTwice, "a slot is listed twice", ("sglang#13501",), "no_double_free"),
)
