"""Faults of kv_manager: what stands in a request's block table, or in a mirror of it."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.variants.kv_manager import KeepsAhead
from kvlockstep.reference.kv_manager.manager import KVManager, Request


class Mirrored(KVManager):
    """Answers `slots` from a mirror of the tables, told of new blocks only."""

    def reset(self) -> None:
        super().reset()
        self._mirror: dict[str, list[int]] = {}

    def slots(self, rid: str) -> list[int]:
        table = self._mirror.get(rid) or self._live[rid].table
        return [block * self.block_size + i for block in table for i in range(self.block_size)]


class MirrorExtends(Mirrored):
    """A resumed request's blocks are put behind those that it gave up."""

    def preempt(self, rid: str) -> None:
        self._mirror[rid] = list(self.slots(rid)[:: self.block_size])
        self._mirror[rid] = [slot // self.block_size for slot in self._mirror[rid]]
        super().preempt(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and rid in self._mirror:
            self._mirror[rid] += self._live[rid].table
        return cached


class MirrorReplaces(Mirrored):
    """A request that was once preempted is taken to be so still: its new blocks replace those it has."""

    def reset(self) -> None:
        super().reset()
        self._were_preempted: set[str] = set()

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        self._mirror.pop(rid, None)
        self._were_preempted.add(rid)

    def reserve(self, rid: str, n: int) -> bool:
        before = list(self._live[rid].table)
        accepted = super().reserve(rid, n)
        new = [block for block in self._live[rid].table if block not in before]
        if accepted and new and rid in self._were_preempted:
            self._mirror[rid] = new
        return accepted


class BoundaryPageTwice(KVManager):
    """Prompt and answer give their blocks back each by its own length: the block that both lie in comes back twice."""

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


class MapsAPageAgain(KVManager):
    """With more counted as computed than is, the next block of a request is one that it has already."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        had = len(request.table)
        accepted = super().reserve(rid, n)
        if accepted and n > 1 and len(request.table) > max(had, 1):
            self._drop(request.table.pop())
            request.table.append(request.table[0])
            self._hold(request.table[0])
        return accepted


class HitFreezesTable(KVManager):
    """The block list of a request that began with a hit does not grow."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        boundary = request.table and request.computed % self.block_size == 0
        if boundary and request.table[0] in self._key_of and self._refs[request.table[0]] > 1:
            request.base = list(request.table)
            return True
        return super().reserve(rid, n)


class TableOfZeros(KVManager):
    """What is not allocated of a table names slot 0."""

    def slots(self, rid: str) -> list[int]:
        slots = super().slots(rid)
        missing = len(self._live[rid].tokens) - len(slots)
        return slots + [0] * max(0, missing)


class PreemptStash(KVManager):
    """Blocks reserved but not delivered yet wait in a stash, which a preemption does not clear."""

    def reset(self) -> None:
        super().reset()
        self._stash: dict[str, int] = {}

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._stash[rid] = self._live[rid].table[-1]

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and rid in self._stash and self._live[rid].table:
            self._live[rid].table.append(self._stash[rid])
        return cached


class ResumeNeverRefused(KVManager):
    """Bringing a request back fails for want of blocks, and is answered as if it had worked."""

    def reset(self) -> None:
        super().reset()
        self._waiting: set[str] = set()

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        self._waiting.add(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is None and rid in self._waiting:
            self._live[rid] = Request(list(tokens), extra_key, self._take(len(self._free)), 0)
            return 0
        return cached


class ComputedInSevenBits(KVManager):
    """How many tokens a request has computed is counted in seven bits."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._live[rid].computed &= 127


class TakesAhead(KeepsAhead):
    """One block more than needed is taken while any is free, also where the worker's row has no room for it."""

    lookahead_blocks = 0


class RollbackForgets(KVManager):
    """A reservation that fails on the way is rolled back to no blocks at all."""

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        if not accepted:
            self._live[rid].table = []
        return accepted


class RollbackTakesAnew(KVManager):
    """A refused reservation gives back what was reserved before and not used, and takes as many blocks again."""

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


FAULTS = faults_of(
    "kv_manager",
    ("kv-takes-ahead", TakesAhead, "a table longer than its row", ("shape: lookahead unbounded",), "table_limit"),
    ("kv-rollback-forgets", RollbackForgets, "a rollback to nothing", ("shape: a rollback goes too far",), "atomicity"),
    ("kv-rollback-anew", RollbackTakesAnew, "a rollback to others", ("shape: a rollback reallocates",), "atomicity"),
    ("kv-mirror-extends", MirrorExtends, "a mirror keeps freed blocks", ("LMCache#1361",), "accounting"),
    ("kv-mirror-replaces", MirrorReplaces, "a mirror loses the table", ("vllm#46595",), "coverage"),
    ("kv-boundary-page", BoundaryPageTwice, "a page of two parts, freed twice", ("sglang#38840",), "no_double_free"),
    ("kv-page-again", MapsAPageAgain, "a page is mapped again", ("sglang#28754",), "no_aliasing"),
    ("kv-hit-freezes", HitFreezesTable, "a loaded table does not grow", ("TensorRT-LLM#13320",), "coverage"),
    ("kv-table-zeros", TableOfZeros, "no slot is slot 0", ("seed 001",), "no_aliasing"),
    ("kv-stash-stays", PreemptStash, "a stash outlives a preemption", ("vllm-rbln#676",), "accounting"),
    ("kv-computed-7-bits", ComputedInSevenBits, "a count of tokens wraps", ("mutant",), "coverage"),
    ("kv-resume-not-refused", ResumeNeverRefused, "a failure taken for success", ("xinfer#405",), "coverage"),
)
