"""Faults of kv_manager: reset."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key, KVManager


@fault("kv-reset-keeps-cache", law="content_equality", seen=("vllm#57727",))
class ResetKeepsCache(KVManager):
    """reset keeps the published blocks, although their memory is free again."""

    def reset(self) -> None:
        cached, keys = getattr(self, "_cached", {}), getattr(self, "_key_of", {})
        super().reset()
        self._cached, self._key_of = cached, keys


@fault("kv-reset-keeps-live", law="reset_complete", seen=("sglang#12099",))
class ResetKeepsLive(KVManager):
    """reset clears the cache but does not take back the blocks of live requests."""

    def reset(self) -> None:
        held = [block for request in getattr(self, "_live", {}).values() for block in request.table]
        super().reset()
        self._free = [block for block in self._free if block not in held]


@fault("kv-reset-keeps-idle", law="reset_complete", seen=("vllm#57727",))
class ResetKeepsIdle(KVManager):
    """reset ends the live requests but keeps the idle cached blocks."""

    def reset(self) -> None:
        if not hasattr(self, "_live"):
            super().reset()
        for rid in list(self._live):
            self.finish(rid)


@fault("kv-reset-moves-on", law="conservation", seen=("mutant",))
class ResetMovesOn(KVManager):
    """Each reset creates a second pool behind the first and never frees the first."""

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


@fault("kv-reset-keeps-queue", law="no_double_free", seen=("sglang#26009",))
class ResetKeepsQueue(KVManager):
    """A finished request is released at the next admission, even if a reset came in between."""

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


@fault("kv-reset-wants-idle", law="error_contract", seen=("sglang#12099",))
class ResetWantsIdle(KVManager):
    """reset raises AssertionError if a request is live."""

    def reset(self) -> None:
        assert not getattr(self, "_live", {}), "requests are live"
        super().reset()


@fault("kv-reset-one-tier", law="free_count", seen=("vllm#57727", "sglang#26792"))
class TwoTiers(KVManager):
    """A second index still finds evicted blocks that are free, and reset does not clear it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self._shadow: dict[Key, int] = {}
        super().__init__(blocks, block_size)

    def free_slots(self) -> Iterable[int] | None:
        hittable = set(self._shadow.values())
        return [slot for slot in super().free_slots() or () if slot // self.block_size not in hittable]

    def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
        for end in range(self.block_size, len(tokens), self.block_size):
            key = self._key(extra_key, tokens[:end])
            block = self._shadow.pop(key, None)
            if block in self._free and key not in self._cached:
                self._free.remove(block)
                self._cached[key], self._key_of[block], self._idle[block] = block, key, None
        return super()._lookup(tokens, extra_key)

    def _take(self, n: int) -> list[int]:
        taken = super()._take(n)
        self._shadow = {key: block for key, block in self._shadow.items() if block not in taken}
        return taken

    def _evict(self, block: int) -> None:
        self._shadow[self._key_of[block]] = block
        super()._evict(block)


@fault("kv-reset-keeps-refs", law="leak_freedom", seen=("mutant",))
class ResetKeepsReferences(KVManager):
    """reset keeps the reference counts, and later allocations add to them."""

    def reset(self) -> None:
        before = getattr(self, "_refs", None)
        super().reset()
        self._refs = before or self._refs

    def _take(self, n: int) -> list[int]:
        before = self._refs.copy()
        taken = super()._take(n)
        for block in taken:
            self._refs[block] = before[block] + 1
        return taken
