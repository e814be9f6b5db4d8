"""Faults of kv_manager: eviction."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import KVManager


@fault("kv-ghost-key", law="write_isolation", seen=("nano-vllm#163",))
class GhostKey(KVManager):
    """A block that is taken again can still be found under its old key."""

    def _evict(self, block: int) -> None:
        del self._idle[block]
        self._free.append(block)


@fault("kv-evicts-held", law="eviction_complete", seen=("LMCache#3130", "atlas#373 (a)"))
class EvictsHeld(KVManager):
    """evict_all drops published blocks even if requests hold them."""

    def evict_all(self) -> None:
        super().evict_all()
        for block in list(self._key_of):
            del self._cached[self._key_of.pop(block)]
            self._free.append(block)


@fault("kv-evicts-all-but-one", law="eviction_complete", seen=("ik_llama.cpp#2320",))
class EvictsAllButOne(KVManager):
    """evict_all keeps the most recent block."""

    def evict_all(self) -> None:
        for block in list(self._idle)[:-1]:
            self._evict(block)


@fault("kv-evicts-referenced", law="eviction_safety", seen=("LMCache#987", "mini-sglang#52"))
class EvictsReferenced(KVManager):
    """With no block free, eviction takes the least recently published block even if it is held."""

    def _take(self, n: int) -> list[int]:
        if not self._free and self._key_of and len(self._idle) > 0:
            block = next(iter(self._key_of))
            self._idle.pop(block, None)
            del self._cached[self._key_of.pop(block)]
            self._free.append(block)
        return super()._take(n)


@fault("kv-key-of-stays", law="error_contract", seen=("kvcached#362",))
class KeyOfStays(KVManager):
    """Eviction removes the index entry but leaves the key on the block."""

    def _evict(self, block: int) -> None:
        del self._idle[block]
        del self._cached[self._key_of[block]]
        self._free.append(block)


@fault("kv-evict-drops-twin", law="accounting", seen=("atlas#373 (c)",))
class EvictDropsTwin(KVManager):
    """The cache holds a reference on the newest of equal blocks but names the oldest."""

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


@fault("kv-evict-splices", law="prefix_soundness", seen=("mutant",))
class EvictionSplices(KVManager):
    """Evicting a block attaches its children to its parent, so their keys skip its tokens."""

    def _evict(self, block: int) -> None:
        extra_key, gone = self._key_of[block]
        super()._evict(block)
        for behind, (key, tokens) in list(self._key_of.items()):
            if key == extra_key and len(tokens) > len(gone) and tokens[: len(gone)] == gone:
                spliced = (key, gone[: -self.block_size] + tokens[len(gone) :])
                if spliced not in self._cached:
                    self._cached[spliced] = self._cached.pop((key, tokens))
                    self._key_of[behind] = spliced
