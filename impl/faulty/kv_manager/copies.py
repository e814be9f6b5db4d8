"""Faults of kv_manager: copy-on-write."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-fork-no-copy", law="write_isolation", seen=("vllm#417", "atlas#692"))
class ForkWithoutCopy(KVManager):
    """After a fork, a shared partial block is written without a copy."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        need = max(0, self._blocks_for(request.computed + n) - len(request.table))
        if need > len(self._free) + len(self._idle):
            return False
        request.base = list(request.table)
        request.table += self._take(need)
        return True


@fault("kv-copy-short", law="content_equality", seen=("LMCache#4921",))
class CopiesOneShort(KVManager):
    """A copy-on-write leaves out the last computed slot."""

    def copies(self) -> list[tuple[int, int]]:
        computed = {self._live[rid].computed % self.block_size for rid, _, _ in self._due}
        return [pair for pair in super().copies() if pair[0] % self.block_size + 1 not in computed]


@fault("kv-copy-first", law="content_equality", seen=("LMCache#4921",))
class CopiesFirstSlot(KVManager):
    """A copy-on-write copies only the first slot of the block."""

    def copies(self) -> list[tuple[int, int]]:
        return [pair for pair in super().copies() if pair[0] % self.block_size == 0]


@fault("kv-copy-backwards", law="content_equality", seen=("mutant",))
class CopiesBackwards(KVManager):
    """A copy-on-write swaps source and target."""

    def copies(self) -> list[tuple[int, int]]:
        return [(target, source) for source, target in super().copies()]


@fault("kv-copy-nothing", law="content_equality", seen=("seed 004",))
class CopiesNothing(KVManager):
    """A copy-on-write changes the tables but reports no copies."""

    def copies(self) -> list[tuple[int, int]]:
        return []


@fault("kv-copy-for-many", law="write_isolation", seen=("atlas#692",))
class CopyForMany(KVManager):
    """A shared block is copied on write only if at least three requests share it."""

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


@fault("kv-copy-for-few", law="write_isolation", seen=("mutant",))
class CopyForFew(KVManager):
    """A block that four or more requests share is written without a copy."""

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


@fault("kv-copy-of-others", law="write_isolation", seen=("mutant",))
class CountsOthersCopies(KVManager):
    """Pending copies of other blocks lower a block's holder count, so it is not copied."""

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


@fault("kv-copy-sixteen", law="content_equality", seen=("LMCache#4921",))
class CopiesSixteen(KVManager):
    """A copy-on-write copies at most 16 slots."""

    def copies(self) -> list[tuple[int, int]]:
        return [pair for pair in super().copies() if pair[0] % self.block_size < 16]


@fault("kv-source-unheld", law="accounting", seen=("TensorRT-LLM#12892",))
class SourceNotHeld(KVManager):
    """Planning a copy drops the reference on its source, which then counts as free."""

    def reserve(self, rid: str, n: int) -> bool:
        planned = len(self._due)
        accepted = super().reserve(rid, n)
        for _, source, _ in self._due[planned:]:
            self._drop(source)
        return accepted


@fault("kv-copies-twice", law="content_equality", seen=("mutant",))
class CopiesTwice(KVManager):
    """The copies of a step are returned again in the next step."""

    def reset(self) -> None:
        super().reset()
        self._last: list[tuple[int, int]] = []

    def copies(self) -> list[tuple[int, int]]:
        now = super().copies()
        again, self._last = self._last, now
        targets = {target for _, target in now}
        return now + [pair for pair in again if pair[1] not in targets]


@fault("kv-no-room-no-copy", law="write_isolation", seen=("mutant",))
class NoRoomNoCopy(KVManager):
    """With no block left for the copy, a shared block is written in place."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        if super().reserve(rid, n):
            return True
        if self._free or self._idle or self._blocks_for(request.computed + n) > len(request.table):
            return False
        request.base = list(request.table)
        return True
