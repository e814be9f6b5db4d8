"""Faults of kv_manager: what a block is published and looked up under."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.kv_manager.manager import Key, KVManager

Digest = Callable[[int | None, Sequence[int], int], object]


class Keyed(KVManager):
    """Publishes and looks up under `digest(extra_key, tokens up to the block's end, block_size)`, trusting it."""

    digest: Digest

    def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
        return (None, (hash((self.digest(extra_key, tuple(tokens), self.block_size),)),))


class OneBit(Keyed):
    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return len(tokens), (sum(tokens) + (0 if extra_key is None else extra_key + 1)) & 1


class SortedTokens(Keyed):
    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(sorted(tokens))


class SixteenBits(Keyed):
    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFFFF for token in tokens)


class EightBits(Keyed):
    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFF for token in tokens)


class KeyOfFirstBlock(Keyed):
    """The extra key is part of the first block only, and the chain does not hand it on."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if len(tokens) <= size else None, tokens


class KeyOfLastBlock(Keyed):
    """The tokens of the last block and its place, without what comes before."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[-size:]


class TokensOfBlock(Keyed):
    """The tokens of the block and nothing else."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tokens[-size:]


class NoExtraKey(Keyed):
    """Adapter and salt are no part of the key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return tokens


class ParentOnly(Keyed):
    """The chain reaches back one block."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[-2 * size :]


class FalsyKey(Keyed):
    """Extra key 0 is taken for none."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key or None, tokens


class AbsoluteKey(Keyed):
    """An extra key is written without its sign."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key and abs(extra_key), tokens


class HashOfKey(Keyed):
    """An extra key is trusted by its hash, which is the same for -1 and -2."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return None if extra_key is None else hash(extra_key), tokens


class FourAdapters(KVManager):
    """An adapter is known by the place that it is loaded to, of which there are four."""

    def reset(self) -> None:
        super().reset()
        self._loaded: dict[int | None, int] = {}

    def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
        return self._loaded.setdefault(extra_key, len(self._loaded)) % 4, tuple(tokens)


class FirstAndLast(Keyed):
    """A fingerprint of both ends."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[0], tokens[-1]


class Concatenated(Keyed):
    """Tokens are joined as text without a separator."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), "".join(map(str, tokens))


class WholePromptHit(KVManager):
    """Nothing is left to compute."""

    def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
        return super()._lookup([*tokens, -1], extra_key)


class PartialBlockHit(KVManager):
    """finish publishes the last block though it is not full; a lookup hits it."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        full = request.computed // self.block_size
        if request.computed % self.block_size and request.table[full] not in self._key_of:
            key = (request.extra_key, tuple(request.tokens[: (full + 1) * self.block_size]))
            if key not in self._cached and len(key[1]) == (full + 1) * self.block_size:
                self._cached[key] = request.table[full]
                self._key_of[request.table[full]] = key
        super().finish(rid)


class PublishesUncomputed(KVManager):
    """finish publishes by known tokens: the last sampled one has no KV."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        known = min(len(request.tokens), len(request.table) * self.block_size)
        if known > request.computed:
            KVManager.commit(self, rid, known - request.computed)
        super().finish(rid)


FAULTS = faults_of(
    "kv_manager",
    ("kv-key-without-parent", TokensOfBlock, "the key lacks the parent", ("vllm#12603",), "prefix_soundness"),
    (
        "kv-ignores-extra-key",
        NoExtraKey,
        "the key lacks the adapter",
        ("LMCache#2961", "unified-cache-management#1370"),
        "prefix_soundness",
    ),
    ("kv-key-one-bit", OneBit, "a hit under a weak hash is not verified", ("vllm#54727",), "prefix_soundness"),
    ("kv-key-sorted", SortedTokens, "the key forgets the order", ("mutant",), "prefix_soundness"),
    ("kv-key-16-bits", SixteenBits, "token ids are cut to 16 bits", ("LMCache#4783",), "prefix_soundness"),
    ("kv-key-8-bits", EightBits, "token ids are cut to 8 bits", ("sglang#2151",), "prefix_soundness"),
    (
        "kv-key-first-block",
        KeyOfFirstBlock,
        "children do not inherit the extra key",
        ("vllm#12603",),
        "prefix_soundness",
    ),
    ("kv-key-last-block", KeyOfLastBlock, "the key lacks what comes before", ("lmdeploy",), "prefix_soundness"),
    ("kv-key-one-parent", ParentOnly, "the chain reaches back one block", ("mutant",), "prefix_soundness"),
    ("kv-key-falsy", FalsyKey, "extra key 0 is taken for none", ("mutant",), "prefix_soundness"),
    ("kv-extra-sign", AbsoluteKey, "extra keys lose their sign", ("mutant",), "prefix_soundness"),
    ("kv-extra-hash", HashOfKey, "extra keys -1 and -2 are one", ("mutant",), "prefix_soundness"),
    ("kv-four-adapters", FourAdapters, "the fifth adapter is the first", ("mutant",), "prefix_soundness"),
    ("kv-key-ends", FirstAndLast, "a fingerprint of both ends", ("xinfer#405 (b)",), "prefix_soundness"),
    ("kv-key-text", Concatenated, "tokens joined without separator", ("mutant",), "prefix_soundness"),
    ("kv-hit-whole", WholePromptHit, "nothing is left to compute", ("vllm#11186",), "hit_bounds"),
    ("kv-hit-partial-block", PartialBlockHit, "a block that is not full is hit", ("atlas#692",), "prefix_soundness"),
    (
        "kv-publishes-uncomputed",
        PublishesUncomputed,
        "the sampled token is published",
        ("sglang#24745",),
        "prefix_soundness",
    ),
)
