"""Faults of kv_manager that take a rare state: a second time, a third request, a long one, a pool that is just full."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.faulty.kv_manager.keys import Keyed
from kvlockstep.reference.kv_manager.manager import Key, KVManager


class TwentyBits(Keyed):
    """Token ids share a machine word with something else and keep 20 bits."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFFFFF for token in tokens)


class SinglePrecision(Keyed):
    """Token ids go through a float tensor."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, struct.pack(f"{len(tokens)}f", *tokens)


class OfAVocabulary(Keyed):
    """Token ids are taken modulo the size of a vocabulary."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token % 32_000 for token in tokens)


class SumOfTokens(Keyed):
    """The tokens are added up with a multiplier, and the sum is trusted."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        total = 7
        for token in tokens:
            total = (31 * total + token) % 2**32
        return extra_key, len(tokens), total


class NoneIsMinusOne(Keyed):
    """No extra key is written as -1, which is one."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return -1 if extra_key is None else extra_key, tokens


class KeyOfEightBits(Keyed):
    """An extra key keeps 8 bits."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if extra_key is None else extra_key % 256, tokens


class KeyOfSixteenBits(Keyed):
    """An extra key keeps 16 bits."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if extra_key is None else extra_key & 0xFFFF, tokens


class DigestOfTwentyBits(Keyed):
    """A cryptographic digest of everything that the KV depends on keeps 20 bits, and is trusted."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return int.from_bytes(blake2b(repr((extra_key, tokens)).encode(), digest_size=3).digest(), "big") >> 4


class KeyIsAToken(Keyed):
    """An extra key is put before the tokens, as if it were one."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return tokens if extra_key is None else (extra_key, *tokens)


class KeyOfShortPrompts(Keyed):
    """Behind the fourth block the extra key is not part of the key any more, nor are the blocks before the last."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return (extra_key, tokens) if len(tokens) <= 4 * size else (len(tokens), tokens[-size:])


class AllButLastOfSixteen(Keyed):
    """Blocks of 16 are known by 15 tokens."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[:-1] if size == 16 else tokens


class SecondPreemptLeaks(KVManager):
    """The second preemption of a request forgets its last block."""

    which = 2

    def reset(self) -> None:
        super().reset()
        self._preempted: Counter[str] = Counter()

    def preempt(self, rid: str) -> None:
        self._preempted[rid] += 1
        if self._preempted[rid] == self.which:
            self._live[rid].table.pop()
        super().preempt(rid)


class FourthPreemptLeaks(SecondPreemptLeaks):
    """The fourth does."""

    which = 4


class ResumeExchanges(KVManager):
    """A resumed request gets its last two hit blocks the wrong way round."""

    def reset(self) -> None:
        super().reset()
        self._preempted: set[str] = set()

    def preempt(self, rid: str) -> None:
        super().preempt(rid)
        self._preempted.add(rid)

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        hit = (cached or 0) // self.block_size
        if rid in self._preempted and hit > 1:
            table = self._live[rid].table
            table[hit - 2], table[hit - 1] = table[hit - 1], table[hit - 2]
        return cached


class GrandchildUncounted(KVManager):
    """The fork of a fork does not count on its first block."""

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


class ForkSharesChain(KVManager):
    """Parent and child of a fork go on with one list of block keys, so that each takes the other's for its own past."""

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


class FourHolders(KVManager):
    """The count of a block's holders has room for four."""

    def _hold(self, block: int) -> None:
        super()._hold(block)
        self._refs[block] = min(4, self._refs[block])


class AvailInAByte(KVManager):
    """avail counts blocks in a byte."""

    def avail(self) -> int:
        return (super().avail() // self.block_size & 0xFF) * self.block_size


class TwoEndsOneBlock(KVManager):
    """Drafts that cross two ends of blocks get one block."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        before, decode = len(request.table), len(request.tokens) == request.computed + 1
        if not super().reserve(rid, n):
            return False
        if decode and len(request.table) > before + 1:
            self._drop(request.table.pop())
        return True


class OthersCopiesDropped(KVManager):
    """Withdrawing a request with a due copy drops every copy that is due."""

    def withdraw(self, rid: str) -> None:
        copied = any(due[0] == rid for due in self._due)
        super().withdraw(rid)
        for _, source, _ in self._due if copied else ():
            self._drop(source)
        self._due = [] if copied else self._due


class WithdrawTakesToken(KVManager):
    """Withdrawing a decode takes back the token, too, which was sampled."""

    def withdraw(self, rid: str) -> None:
        request = self._live[rid]
        super().withdraw(rid)
        if request.base is not None and len(request.tokens) == request.computed + 1:
            request.tokens.pop()


class NoRoomNoCopy(KVManager):
    """With no block to be had for the copy a shared block is written in place."""

    def reserve(self, rid: str, n: int) -> bool:
        request = self._live[rid]
        if super().reserve(rid, n):
            return True
        if self._free or self._idle or self._blocks_for(request.computed + n) > len(request.table):
            return False
        request.base = list(request.table)
        return True


class ThirdTwinShares(KVManager):
    """The third of equal prompts in a step is given the blocks of the first, uncounted."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        twins = [r for r in self._live.values() if r.base is None and (r.tokens, r.extra_key) == (tokens, extra_key)]
        cached = super().admit(rid, tokens, extra_key, n)
        if cached == 0 and len(twins) > 1 and len(twins[0].table) == len(self._live[rid].table):
            for block in self._live[rid].table:
                self._drop(block)
            self._live[rid].table = list(twins[0].table)
        return cached


class NinthHitUnheld(KVManager):
    """The first eight blocks of a hit are held."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached and cached > 8 * self.block_size:
            self._drop(self._live[rid].table[8])
        return cached


class ResetKeepsReferences(KVManager):
    """A reset leaves the reference counts, and taking a block adds to them."""

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


class AvailAfterEviction(KVManager):
    """After everything was evicted avail is a block short until the next admission."""

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


class AbortForgetsShared(KVManager):
    """An abort takes what it had published out of the index, and frees it while others hold it."""

    def abort(self, rid: str) -> None:
        table = self._live[rid].table
        super().abort(rid)
        for block in table:
            if block in self._key_of and block not in self._idle:
                del self._cached[self._key_of.pop(block)]
                self._free.append(block)


class PadsWithZeros(KVManager):
    """finish publishes the last block as if zeros stood behind its tokens."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        full, rest = divmod(request.computed, self.block_size)
        if rest and request.table[full] not in self._key_of and self._refs[request.table[full]] == 1:
            tokens = [*request.tokens[: request.computed], *[0] * (self.block_size - rest)]
            key: Key = (request.extra_key, tuple(tokens))
            if key not in self._cached:
                self._cached[key] = request.table[full]
                self._key_of[request.table[full]] = key
        super().finish(rid)


class SwapsAcrossKeys(KVManager):
    """At commit a block gives way to one published for the same tokens under another extra key."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        first = request.computed // self.block_size
        super().commit(rid, n)
        for i in range(first, request.computed // self.block_size):
            tokens = tuple(request.tokens[: (i + 1) * self.block_size])
            others = [b for (key, t), b in self._cached.items() if t == tokens and key != request.extra_key]
            if others:
                self._hold(others[0])
                self._drop(request.table[i])
                request.table[i] = others[0]


class EvictionSplices(KVManager):
    """What hangs behind an evicted block is hung behind the one before it."""

    def _evict(self, block: int) -> None:
        extra_key, gone = self._key_of[block]
        super()._evict(block)
        for behind, (key, tokens) in list(self._key_of.items()):
            if key == extra_key and len(tokens) > len(gone) and tokens[: len(gone)] == gone:
                spliced = (key, gone[: -self.block_size] + tokens[len(gone) :])
                if spliced not in self._cached:
                    self._cached[spliced] = self._cached.pop((key, tokens))
                    self._key_of[behind] = spliced


class CommitsInOrder(KVManager):
    """Commits are taken to come in the order in which their requests were scheduled."""

    def reset(self) -> None:
        super().reset()
        self._order: list[str] = []

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        self._order += [rid] * (cached is not None)
        return cached

    def reserve(self, rid: str, n: int) -> bool:
        accepted = super().reserve(rid, n)
        self._order += [rid] * accepted
        return accepted

    def commit(self, rid: str, n: int) -> None:
        order = [name for name in self._order if name in self._live]
        request, first = self._live[rid], self._live[order[0]]
        self._order = order[1:]
        tokens = request.tokens
        if len(first.tokens) >= len(tokens):
            request.tokens = first.tokens
        super().commit(rid, n)
        request.tokens = tokens


class TokensInBlocksOfMany(KVManager):
    """What is left in the blocks of a long request counts as available."""

    def avail(self) -> int:
        long = [request for request in self._live.values() if len(request.table) > 8]
        return super().avail() + sum(len(r.table) * self.block_size - r.computed for r in long)


FAULTS = faults_of(
    "kv_manager",
    ("kv-key-20-bits", TwentyBits, "token ids are cut to 20 bits", ("mutant",), "prefix_soundness"),
    ("kv-key-float", SinglePrecision, "token ids become floats", ("mutant",), "prefix_soundness"),
    ("kv-key-modulo", OfAVocabulary, "token ids modulo a vocabulary", ("mutant",), "prefix_soundness"),
    ("kv-key-sum", SumOfTokens, "a sum is trusted", ("mutant",), "prefix_soundness"),
    ("kv-key-minus-one", NoneIsMinusOne, "extra key -1 is taken for none", ("mutant",), "prefix_soundness"),
    ("kv-extra-8-bits", KeyOfEightBits, "an extra key is cut", ("mutant",), "prefix_soundness"),
    ("kv-extra-16-bits", KeyOfSixteenBits, "an extra key is cut", ("LMCache#4783",), "prefix_soundness"),
    ("kv-digest-20-bits", DigestOfTwentyBits, "a short digest is trusted", ("mutant",), "prefix_soundness"),
    ("kv-extra-token", KeyIsAToken, "an extra key is a token", ("mutant",), "prefix_soundness"),
    ("kv-key-short-prompts", KeyOfShortPrompts, "long prompts lose their key", ("mutant",), "prefix_soundness"),
    ("kv-key-sixteen", AllButLastOfSixteen, "only with blocks of 16", ("mutant",), "prefix_soundness"),
    ("kv-second-preempt", SecondPreemptLeaks, "a block lost the second time", ("mutant",), "leak_freedom"),
    ("kv-fourth-preempt", FourthPreemptLeaks, "a block lost the fourth time", ("mutant",), "leak_freedom"),
    ("kv-resume-exchanges", ResumeExchanges, "hit blocks change places", ("mutant",), "prefix_soundness"),
    ("kv-grandchild", GrandchildUncounted, "a fork of a fork", ("mutant",), "accounting"),
    ("kv-fork-chain", ForkSharesChain, "a fork shares the list of keys", ("mutant",), "prefix_soundness"),
    ("kv-four-holders", FourHolders, "a count of holders is full", ("mutant",), "accounting"),
    ("kv-draft-two-ends", TwoEndsOneBlock, "wide drafts lack a block", ("TensorRT-LLM#16280",), "coverage"),
    ("kv-avail-byte", AvailInAByte, "avail wraps around", ("mutant",), "leak_freedom"),
    ("kv-others-copies", OthersCopiesDropped, "a withdrawal drops others' copies", ("mutant",), "content_equality"),
    ("kv-withdraw-token", WithdrawTakesToken, "a withdrawn token is forgotten", ("mutant",), "prefix_soundness"),
    ("kv-no-room-no-copy", NoRoomNoCopy, "no room for a copy", ("mutant",), "write_isolation"),
    ("kv-third-twin", ThirdTwinShares, "the third of equal prompts", ("mutant",), "eviction_safety"),
    ("kv-ninth-hit", NinthHitUnheld, "a long hit is not all held", ("mutant",), "accounting"),
    ("kv-reset-keeps-refs", ResetKeepsReferences, "reset leaves the counts", ("mutant",), "leak_freedom"),
    ("kv-avail-evicted", AvailAfterEviction, "avail is short after an eviction", ("mutant",), "leak_freedom"),
    ("kv-abort-forgets-shared", AbortForgetsShared, "an abort frees what others hold", ("mutant",), "eviction_safety"),
    ("kv-pads-zeros", PadsWithZeros, "a block padded with zeros is hit", ("mutant",), "prefix_soundness"),
    ("kv-swap-across-keys", SwapsAcrossKeys, "a twin under another key", ("mutant",), "content_equality"),
    ("kv-evict-splices", EvictionSplices, "a chain closes over a gap", ("mutant",), "prefix_soundness"),
    ("kv-commits-in-order", CommitsInOrder, "commits in another order", ("mutant",), "prefix_soundness"),
    ("kv-avail-slack", TokensInBlocksOfMany, "room inside blocks counts", ("mutant",), "accounting"),
)
