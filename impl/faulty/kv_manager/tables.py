"""Faults of kv_manager: block tables."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.kv_manager import KeepsAhead
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-table-cut", law="coverage", seen=("mutant",))
class LongTablesCut(KVManager):
    """A block table keeps only its first eight blocks."""

    def slots(self, rid: str) -> list[int]:
        return super().slots(rid)[: 8 * self.block_size]


@fault("kv-one-tail", law="no_aliasing", seen=("mutant",))
class NewRequestSharesTail(KVManager):
    """Two admissions in one step get the same last block."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        fresh = [r for name, r in self._live.items() if r.base is None and name != rid]
        if cached == 0 and fresh and len(self._live[rid].table) > 1 and fresh[-1].table:
            self._drop(self._live[rid].table[-1])
            self._live[rid].table[-1] = fresh[-1].table[-1]
            self._hold(fresh[-1].table[-1])
        return cached


class Mirrored(KVManager):
    """Answers `slots` from a worker's copy of the tables, which hears of new blocks only."""

    def reset(self) -> None:
        super().reset()
        self._mirror: dict[str, list[int]] = {}

    def slots(self, rid: str) -> list[int]:
        table = self._mirror.get(rid) or self._live[rid].table
        return [block * self.block_size + i for block in table for i in range(self.block_size)]


@fault("kv-mirror-extends", law="accounting", seen=("LMCache#1361",))
class MirrorExtends(Mirrored):
    """The worker's table of a resumed request keeps the blocks that were given up."""

    def preempt(self, rid: str) -> None:
        self._mirror[rid] = list(self.slots(rid)[:: self.block_size])
        self._mirror[rid] = [slot // self.block_size for slot in self._mirror[rid]]
        super().preempt(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None and rid in self._mirror:
            self._mirror[rid] += self._live[rid].table
        return cached


@fault("kv-mirror-replaces", law="coverage", seen=("vllm#46595",))
class MirrorReplaces(Mirrored):
    """The worker's table of a request that was once preempted is replaced at every growth."""

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


@fault("kv-page-again", law="no_aliasing", seen=("sglang#28754",))
class MapsAPageAgain(KVManager):
    """A reservation for several tokens maps the request's first block again."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        had = len(request.table)
        accepted = super().reserve(rid, n)
        if accepted and n > 1 and len(request.table) > max(had, 1):
            self._drop(request.table.pop())
            request.table.append(request.table[0])
            self._hold(request.table[0])
        return accepted


@fault("kv-hit-freezes", law="coverage", seen=("TensorRT-LLM#13320",))
class HitFreezesTable(KVManager):
    """The block table of a request that began with a hit does not grow."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        boundary = request.table and request.computed % self.block_size == 0
        if boundary and request.table[0] in self._key_of and self._refs[request.table[0]] > 1:
            request.base = list(request.table)
            return True
        return super().reserve(rid, n)


@fault("kv-table-zeros", law="no_aliasing", seen=("seed 001",))
class TableOfZeros(KVManager):
    """Table entries that are not allocated yet name slot 0."""

    def slots(self, rid: str) -> list[int]:
        slots = super().slots(rid)
        missing = len(self._live[rid].tokens) - len(slots)
        return slots + [0] * max(0, missing)


@fault("kv-takes-ahead", law="table_limit", seen=("shape: lookahead unbounded",))
class TakesAhead(KeepsAhead):
    """A request takes one block ahead of its need, even past the longest table allowed."""

    lookahead_blocks = 0


@fault("kv-third-twin", law="eviction_safety", seen=("mutant",))
class ThirdTwinShares(KVManager):
    """The third of equal prompts in one step gets the first one's blocks without references."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        twins = [r for r in self._live.values() if r.base is None and (r.tokens, r.extra_key) == (tokens, extra_key)]
        cached = super().admit(rid, tokens, extra_key, n)
        if cached == 0 and len(twins) > 1 and len(twins[0].table) == len(self._live[rid].table):
            for block in self._live[rid].table:
                self._drop(block)
            self._live[rid].table = list(twins[0].table)
        return cached
