"""Faults of kv_manager: prefix hits, and the references they take."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key, KVManager, Request


@fault("kv-hit-plus-one", law="prefix_soundness", seen=("vllm#11186",))
class HitOneTooMany(KVManager):
    """A hit reports one token more than its blocks hold."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached + 1 < len(tokens):
            self._live[rid].computed += 1
            return cached + 1
        return cached


@fault("kv-self-evicted-hit", law="content_equality", seen=("vllm#10507", "vllm#33775"))
class SelfEvictedHit(KVManager):
    """An admission takes new blocks before it holds its hit, so it may evict that hit."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        end = min(len(hit) * self.block_size + n, len(tokens))
        need = self._blocks_for(end) - len(hit)
        if need > len(self._free) + len(self._idle):
            return None
        new = self._take(need)
        for block in hit:
            self._hold(block)
        self._live[rid] = Request(list(tokens), extra_key, hit + new, len(hit) * self.block_size)
        return len(hit) * self.block_size


@fault("kv-hit-whole", law="hit_bounds", seen=("vllm#11186",))
class WholePromptHit(KVManager):
    """A hit covers the whole prompt and leaves no token to compute."""

    def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
        return super()._lookup([*tokens, -1], extra_key)


@fault("kv-own-hit-freed", law="accounting", seen=("vllm#41400",))
class OwnHitFreed(KVManager):
    """An admission with a hit releases the last hit block at once."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached >= 2 * self.block_size:
            self._drop(self._live[rid].table[cached // self.block_size - 1])
        return cached


@fault("kv-hit-held-twice", law="leak_freedom", seen=("LMCache#3884",))
class HitHeldTwice(KVManager):
    """A hit of several blocks keeps the reference that its lookup took."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached > self.block_size:
            for block in self._live[rid].table[: cached // self.block_size]:
                self._hold(block)
        return cached


@fault("kv-partly-loaded", law="prefix_soundness", seen=("LMCache#2898",))
class PartlyLoaded(KVManager):
    """A hit of several blocks is loaded into new blocks, but the last one does not arrive."""

    copies_at_admit = True

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        hit = self._lookup(tokens, extra_key)
        while hit and self._blocks_for(len(tokens)) > len(self._free) + sum(b not in hit for b in self._idle):
            hit.pop()
        cached = len(hit) * self.block_size
        need = self._blocks_for(min(cached + n, len(tokens)))
        if need > len(self._free) + sum(block not in hit for block in self._idle):
            return None
        for block in hit:
            self._hold(block)
        table = self._take(need)
        for source, target in zip(hit, table, strict=False):
            self._due.append((rid, source, target))
        for _, source, _ in self._due[-1:] if len(hit) > 1 else []:
            self._drop(source)
            self._due.pop()
        self._live[rid] = Request(list(tokens), extra_key, table, cached)
        return cached

    def withdraw(self, rid: str) -> None:
        for _, source, _ in [due for due in self._due if due[0] == rid and self._live[rid].base is None]:
            self._drop(source)
        if self._live[rid].base is None:
            self._due = [due for due in self._due if due[0] != rid]
        super().withdraw(rid)


@fault("kv-first-look", law="prefix_soundness", seen=("vllm#17305",))
class CountedAtFirstLook(KVManager):
    """A refused admission remembers its hit and uses it when the prompt comes again."""

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


@fault("kv-ninth-hit", law="accounting", seen=("mutant",))
class NinthHitUnheld(KVManager):
    """Only the first eight blocks of a hit get a reference."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached > 8 * self.block_size:
            self._drop(self._live[rid].table[8])
        return cached
