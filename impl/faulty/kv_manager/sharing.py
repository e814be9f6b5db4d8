"""Faults of kv_manager: forks, and reference counts of shared blocks."""

from __future__ import annotations

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key, KVManager, Request


@fault("kv-fork-uncounted", law="accounting", seen=("vllm#417",))
class ForkUncounted(KVManager):
    """A fork shares the blocks without taking references."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        for block in self._live[child].table:
            self._refs[block] -= self._refs[block] > 1
        return pairs


@fault("kv-fork-one-list", law="eviction_safety", seen=("vllm#417",))
class ForkSharesList(KVManager):
    """Parent and child share one block table object."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        if len(self._live[rid].table) == len(self._live[child].table):
            self._live[child].table = self._live[rid].table
        return pairs


@fault("kv-fork-loses-key", law="prefix_soundness", seen=("LMCache#2961",))
class ForkLosesKey(KVManager):
    """A child loses the parent's extra key."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        self._live[child].extra_key = None
        return pairs


@fault("kv-fork-one-text", law="prefix_soundness", seen=("vllm#417",))
class ForkSharesTokens(KVManager):
    """Parent and child share one token list, so the child's tokens are added to the parent's."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        self._live[child].tokens = self._live[rid].tokens
        return pairs


@fault("kv-fork-copies-full", law="content_equality", seen=("vllm#417",))
class ForkFull(KVManager):
    """A fork copies the full blocks but not the last partial one."""

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        parent = self._live[rid]
        blocks, size = self._blocks_for(parent.computed), self.block_size
        if blocks > len(self._free) + len(self._idle):
            return None
        table = self._take(blocks)
        self._live[child] = Request(list(parent.tokens), parent.extra_key, table, parent.computed, list(table))
        copied = range(parent.computed // size * size)
        return [(parent.table[i // size] * size + i % size, table[i // size] * size + i % size) for i in copied]


@fault("kv-refs-one-bit", law="accounting", seen=("mutant",))
class SharedFlag(KVManager):
    """The reference count has one bit, so a third holder is not counted."""

    def _hold(self, block: int) -> None:
        super()._hold(block)
        self._refs[block] = min(self._refs[block], 2)


@fault("kv-grandchild", law="accounting", seen=("mutant",))
class GrandchildUncounted(KVManager):
    """The fork of a fork takes no reference on its first block."""

    def reset(self) -> None:
        super().reset()
        self._children: set[str] = set()

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        pairs = super().fork(rid, child)
        table = self._live[child].table
        if rid in self._children and table:
            self._refs[table[0]] -= 1
        self._children.add(child)
        return pairs


@fault("kv-fork-chain", law="prefix_soundness", seen=("mutant",))
class ForkSharesChain(KVManager):
    """Parent and child share one list of block keys, so each publishes under the other's keys."""

    def reset(self) -> None:
        super().reset()
        self._chains: dict[str, list[Key]] = {}

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        ends = range(self.block_size, (cached or 0) + 1, self.block_size)
        self._chains[rid] = [self._key(extra_key, tokens[:end]) for end in ends]
        return cached

    def fork(self, rid: str, child: str) -> list[tuple[int, int]] | None:
        self._chains[child] = self._chains[rid]
        return super().fork(rid, child)

    def commit(self, rid: str, n: int) -> None:
        request, chain = self._live[rid], self._chains[rid]
        request.computed += n
        request.base = list(request.table)
        for i in range(len(chain), request.computed // self.block_size):
            block, (_, before) = request.table[i], chain[-1] if chain else (None, ())
            own = request.tokens[i * self.block_size : (i + 1) * self.block_size]
            chain.append((request.extra_key, before + tuple(own)))
            if chain[-1] not in self._cached:
                self._cached[chain[-1]] = block
                self._key_of[block] = chain[-1]


@fault("kv-four-holders", law="accounting", seen=("mutant",))
class FourHolders(KVManager):
    """Reference counts stop at four."""

    def _hold(self, block: int) -> None:
        super()._hold(block)
        self._refs[block] = min(4, self._refs[block])
