"""Faults of kv_manager: avail, free_now, free_slots and slots."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-avail-flushes", law="purity", seen=("rule 12",))
class AvailFlushes(KVManager):
    """A finished request's blocks are released only when avail is called."""

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


@fault("kv-lists-freed-twice", law="no_double_free", seen=("sglang#13501",))
class ListsFreedTwice(KVManager):
    """free_slots lists the slots of the last finished request twice."""

    _ended: tuple[int, ...] = ()

    def finish(self, rid: str) -> None:
        self._ended = tuple(self.slots(rid))
        super().finish(rid)

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        return free + [slot for slot in self._ended if slot in free]


@fault("kv-avail-twice", law="leak_freedom", seen=("mutant",))
class AvailTwice(KVManager):
    """avail counts an idle block twice if its neighbour is free."""

    def avail(self) -> int:
        return super().avail() + self.block_size * any(block + 1 in self._free for block in self._idle)


@fault("kv-avail-drifts", law="accounting", seen=("xllm#829",))
class AvailStale(KVManager):
    """avail returns a value that is updated only when it is called with no live request."""

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


@fault("kv-free-now-more", law="free_count", seen=("mutant",))
class FreeNowCountsIdle(KVManager):
    """free_now counts idle blocks and one block more, so it exceeds avail."""

    def free_now(self) -> int:
        return super().free_now() + (len(self._idle) + 1) * self.block_size * bool(self._idle)


@fault("kv-free-slots-held", law="eviction_safety", seen=("mutant",))
class FreeSlotsHeld(KVManager):
    """free_slots includes the written slots of a live request's partial last block."""

    def free_slots(self) -> Iterable[int] | None:
        free = list(super().free_slots() or ())
        for request in self._live.values():
            if request.computed % self.block_size:
                block = request.table[request.computed // self.block_size]
                free += [block * self.block_size + i for i in range(request.computed % self.block_size)]
        return free


@fault("kv-free-slots-cached", law="prefix_soundness", seen=("mutant",))
class FreeSlotsCached(KVManager):
    """free_slots includes cached slots that can still be hit."""

    def free_slots(self) -> Iterable[int] | None:
        cached = [block * self.block_size + i for block in self._idle for i in range(self.block_size)]
        return [*(super().free_slots() or ()), *cached]


@fault("kv-slots-touch", law="coverage", seen=("rule 12",))
class SlotsTouch(KVManager):
    """Calling slots frees the reserved tail of the request."""

    def slots(self, rid: str) -> list[int]:
        slots = super().slots(rid)
        request = self._live[rid]
        if request.base is not None and len(request.table) > self._blocks_for(len(request.tokens)):
            self._drop(request.table.pop())
        return slots


@fault("kv-lazy-finish", law="purity", seen=("rule 12",))
class LazyFinish(KVManager):
    """A finished request's blocks are released only when free_slots is called."""

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


@fault("kv-free-now-cached", law="free_count", seen=("mutant",))
class FreeNowCountsCached(KVManager):
    """free_now counts cached blocks that can still be hit."""

    def free_now(self) -> int:
        return self.avail()


@fault("kv-avail-byte", law="leak_freedom", seen=("mutant",))
class AvailInAByte(KVManager):
    """avail counts blocks in one byte and wraps around."""

    def avail(self) -> int:
        return (super().avail() // self.block_size & 0xFF) * self.block_size


@fault("kv-avail-evicted", law="leak_freedom", seen=("mutant",))
class AvailAfterEviction(KVManager):
    """After evict_all, avail is one block short until the next admission."""

    def reset(self) -> None:
        super().reset()
        self._short = False

    def evict_all(self) -> None:
        self._short = len(self._idle) > 2
        super().evict_all()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        self._short = False
        return super().admit(rid, tokens, extra_key, n)

    def avail(self) -> int:
        return super().avail() - self._short * self.block_size


@fault("kv-avail-slack", law="accounting", seen=("mutant",))
class TokensInBlocksOfMany(KVManager):
    """avail counts the unused slots inside the blocks of a long request."""

    def avail(self) -> int:
        long = [request for request in self._live.values() if len(request.table) > 8]
        return super().avail() + sum(len(r.table) * self.block_size - r.computed for r in long)
