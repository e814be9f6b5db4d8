"""Faults of kv_manager with groups: blocks that groups share, pools that each have their own room."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.groups.geometries import FullAndWindow, TwoPools, TwoWindows
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import Request, to_hit


@fault("kv-group-not-in-key", law="prefix_soundness", seen=("mutant",))
class GroupNotInKey(FullAndWindow):
    """The key of a block lacks its group, so a block of one group is hit as another's."""

    def _key(self, g: int, tokens: list[int], extra_key: int | None, place: int) -> Key:
        return super()._key(0, tokens, extra_key, place)


@fault("kv-group-block-for-two", law="one_group", seen=("mutant",))
class BlockForTwo(FullAndWindow):
    """A block that is taken ahead is given to two groups."""

    def _grow(self, request: Request, n: int) -> None:
        super()._grow(request, n)
        full, window = request.tables
        pool = self._pool(0)
        if len(full) == len(window) and pool.room():
            ahead = pool.take()
            pool.hold(ahead)
            full.append(ahead)
            window.append(ahead)


@fault("kv-group-evicts-own-hit", law="content_equality", seen=("vllm#33775",))
class EvictsOwnHit(FullAndWindow):
    """An admission takes new blocks for one group before it holds the hit of the next group."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = self._lookup(tokens, extra_key)
        request, pool = self._hit(tokens, extra_key, cached), self._pool(0)
        n = min(n, len(tokens) - cached)
        if self._need(request, n)["kv"] > pool.room([block for g in (0, 1) for block in request.held(g)]):
            return None
        for g in (0, 1):
            for block in request.held(g):
                if block in pool.free:
                    pool.free.remove(block)
                pool.hold(block)
            self._grow_in(g, request, n)
        self._live[rid] = request
        return cached


@fault("kv-group-cold", law="prefix_soundness", seen=("vllm#47926", "TensorRT-LLM#18093"))
class GroupCold(FullAndWindow):
    """The group of a draft model is not filled on a hit, and gets new blocks for it."""

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        return g > 0 or super()._serves(g, tokens, extra_key, cached)

    def _need(self, request: Request, n: int) -> Counter[str]:
        need = super()._need(request, n)
        need["kv"] += len(self._cold(request))
        return need

    def _grow(self, request: Request, n: int) -> None:
        for place in self._cold(request):
            table = request.tables[1]
            table += [None] * (place + 1 - len(table))
            table[place] = self._pool(1).take()
        super()._grow(request, n)

    def _cold(self, request: Request) -> list[int]:
        table = request.tables[1]
        return [p for p in to_hit(self.groups[1], request.computed) if p >= len(table) or table[p] is None]


@fault("kv-pool-half-taken", law="atomicity", seen=("mutant",))
class HalfTaken(TwoPools):
    """A reservation takes its blocks of the first pool before it knows that the second one has room."""

    def reserve(self, rid: str, n: int) -> bool:
        if super().reserve(rid, n):
            return True
        request = self._live[rid]
        need = self._need(request, n)["kv"]
        if need <= self._pool(0).room():
            request.tables[0] += [self._pool(0).take() for _ in range(need)]
        return False


@fault("kv-pool-asked-for-all", law="admission_honesty", seen=("mutant",))
class AskedForAll(TwoPools):
    """An admission asks the scarcer pool for the blocks of all groups."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        request = self._hit(tokens, extra_key, self._lookup(tokens, extra_key))
        if self._need(request, min(n, len(tokens) - request.computed)).total() > self._pool(1).room():
            return None
        return super().admit(rid, tokens, extra_key, n)


@fault("kv-pool-evicts-one", law="eviction_complete", seen=("mutant",))
class EvictsOne(TwoPools):
    """evict_all empties the first pool only."""

    def evict_all(self) -> None:
        pool = self._pool(0)
        for block in list(pool.idle):
            pool.evict(block)


@fault("kv-pool-counts-the-other", law="free_count", seen=("mutant",))
class CountsTheOther(TwoPools):
    """free_now of the scarcer pool counts the blocks of the other one."""

    def free_now(self, pool: str = "") -> int:
        return super().free_now("kv")


@fault("kv-pool-frees-other-number", law="no_double_free", seen=("mutant",))
class FreesOtherNumber(TwoPools):
    """A request that ends frees its window blocks in the pool of the full group."""

    def finish(self, rid: str) -> None:
        blocks = self._live[rid].held(1)
        super().finish(rid)
        self._pool(0).free += blocks


@fault("kv-window-smaller-block", law="content_equality", seen=("mutant",))
class SmallerBlock(TwoWindows):
    """The slots of a group with smaller blocks are computed with the block size of the first group."""

    def slots(self, rid: str, group: int) -> list[int | None]:
        size, table = self.groups[group].block_size, self._live[rid].tables[group]
        return [None if block is None else block * self.block_size // 2 + i for block in table for i in range(size)]


@fault("kv-group-forgotten-on-fork", law="accounting", seen=("mutant",))
class ForgottenOnFork(FullAndWindow):
    """A child that ends gives back the blocks of the first group only."""

    def reset(self) -> None:
        super().reset()
        self._children: set[str] = set()

    def fork(self, rid: str, child: str) -> list[tuple[Any, ...]] | None:
        self._children.add(child)
        return super().fork(rid, child)

    def finish(self, rid: str) -> None:
        if rid in self._children:
            self._live[rid].tables[1] = []
        super().finish(rid)


@fault("kv-group-own-hit-length", law="coverage", seen=("TensorRT-LLM#10875",))
class OwnHitLength(FullAndWindow):
    """The hit of a request is the last group's, whatever the groups before it have found."""

    def _full_heads(self, tokens: list[int], extra_key: int | None) -> list[int]:
        return []

    def _serves(self, g: int, tokens: list[int], extra_key: int | None, cached: int) -> bool:
        return g == 0 or super()._serves(g, tokens, extra_key, cached)


@fault("kv-group-shorter-rematch", law="no_aliasing", seen=("sglang#29349",))
class ShorterRematch(FullAndWindow):
    """Behind a chunk a request is matched again, and its own blocks go behind a match that is shorter."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        request = self._live[rid]
        matched = self._lookup(request.tokens, request.extra_key)
        if matched < request.computed < len(request.tokens):
            table = request.tables[0]
            table[:0] = table[: matched // self.block_size]


@fault("kv-window-lock-skips", law="accounting", seen=("sglang#27147",))
class LockSkipsWindow(FullAndWindow):
    """A request that ends unlocks window blocks of its hit that were absent when it locked the others."""

    def reset(self) -> None:
        super().reset()
        self._absent: dict[str, list[int]] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = range(self._lookup(tokens, extra_key) // self.block_size)
        absent = [place for place in hit if self._find(1, tokens, extra_key, place) is None]
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            self._absent[rid] = absent
        return cached

    def finish(self, rid: str) -> None:
        request, pool = self._live[rid], self._pool(1)
        super().finish(rid)
        for place in self._absent.pop(rid, []):
            block = self._find(1, request.tokens, request.extra_key, place)
            if block is not None and pool.refs[block]:
                pool.drop(block)
