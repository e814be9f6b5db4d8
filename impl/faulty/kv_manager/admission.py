"""Faults of kv_manager: what admission counts and remembers, what a full block and a reset are taken for."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import Key, KVManager, Request


class CountedAtFirstLook(KVManager):
    """The hit of an admission that was refused is remembered and used when the prompt comes again."""

    def reset(self) -> None:
        super().reset()
        self._looked: dict[Key, list[int]] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        prompt = (extra_key, tuple(tokens))
        hit = self._looked.pop(prompt, None)
        if hit is None:
            cached = super().admit(rid, tokens, extra_key, n)
            if cached is None:
                self._looked[prompt] = self._lookup(tokens, extra_key)
            return cached
        need = self._blocks_for(min(len(hit) * self.block_size + n, len(tokens))) - len(hit)
        if need > sum(block not in hit for block in [*self._free, *self._idle]):
            return None
        for block in hit:
            if block in self._free:
                self._free.remove(block)
            self._hold(block)
        self._live[rid] = Request(list(tokens), extra_key, hit + self._take(need), len(hit) * self.block_size)
        return len(hit) * self.block_size


class ChunkedCountsTwice(KVManager):
    """A request in the middle of its prompt counts in the batch and among the waiting."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        chunked = sum(len(r.table) for r in self._live.values() if r.computed + 1 < len(r.tokens) and r.base)
        if self._blocks_for(len(tokens)) + chunked > len(self._free) + len(self._idle):
            return None
        return super().admit(rid, tokens, extra_key, n)


class FullBlockAsserts(KVManager):
    """Growing asserts that the last block is open, which it is not behind a prompt of whole blocks."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        assert request.table[(request.computed - 1) // self.block_size] not in self._key_of, "a hashed last block"
        return super().reserve(rid, n)


class ResetWantsIdle(KVManager):
    """reset asserts that no request is live."""

    def reset(self) -> None:
        assert not getattr(self, "_live", {}), "requests are live"
        super().reset()


class TwoTiers(KVManager):
    """What was evicted can still be hit while its block is free: a second index, which a reset leaves."""

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


FAULTS = faults_of(
    "kv_manager",
    ("kv-first-look", CountedAtFirstLook, "a stale hit is used", ("vllm#17305",), "prefix_soundness"),
    ("kv-chunked-twice", ChunkedCountsTwice, "a chunked request counts twice", ("sglang#30295",), "admission_honesty"),
    ("kv-full-block-asserts", FullBlockAsserts, "the last block is full", ("nano-vllm#66",), "error_contract"),
    ("kv-reset-wants-idle", ResetWantsIdle, "reset wants nobody there", ("sglang#12099",), "error_contract"),
    (
        "kv-reset-one-tier",
        TwoTiers,
        "reset clears one index of two",
        ("vllm#57727", "sglang#26792"),
        "free_count",
    ),
)
