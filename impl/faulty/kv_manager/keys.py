"""Faults of kv_manager: what a block is published and looked up under."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_manager.manager import Key, KVManager

Digest = Callable[[int | None, Sequence[int], int], object]


class Keyed(KVManager):
    """Uses `digest(extra_key, tokens up to the block's end, block_size)` as key, and verifies no hit."""

    digest: Digest

    def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
        return (None, (hash((self.digest(extra_key, tuple(tokens), self.block_size),)),))


@fault("kv-key-one-bit", law="prefix_soundness", seen=("vllm#54727",))
class OneBit(Keyed):
    """A block's key is a one-bit hash of its tokens, and a hit is not verified."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return len(tokens), (sum(tokens) + (0 if extra_key is None else extra_key + 1)) & 1


@fault("kv-key-sorted", law="prefix_soundness", seen=("mutant",))
class SortedTokens(Keyed):
    """A block's key ignores the order of its tokens."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(sorted(tokens))


@fault("kv-key-16-bits", law="prefix_soundness", seen=("LMCache#4783",))
class SixteenBits(Keyed):
    """A block's key uses only the low 16 bits of each token id."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFFFF for token in tokens)


@fault("kv-key-8-bits", law="prefix_soundness", seen=("sglang#2151",))
class EightBits(Keyed):
    """A block's key uses only the low 8 bits of each token id."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFF for token in tokens)


@fault("kv-key-first-block", law="prefix_soundness", seen=("vllm#12603",))
class KeyOfFirstBlock(Keyed):
    """Only the key of the first block includes the extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if len(tokens) <= size else None, tokens


@fault("kv-key-last-block", law="prefix_soundness", seen=("lmdeploy",))
class KeyOfLastBlock(Keyed):
    """A block's key is its own tokens and its position, without the tokens before it."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[-size:]


@fault("kv-key-without-parent", law="prefix_soundness", seen=("vllm#12603",))
class TokensOfBlock(Keyed):
    """A block's key is its own tokens, without its parent."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tokens[-size:]


@fault("kv-ignores-extra-key", law="prefix_soundness", seen=("LMCache#2961", "unified-cache-management#1370"))
class NoExtraKey(Keyed):
    """A block's key leaves out the extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return tokens


@fault("kv-key-one-parent", law="prefix_soundness", seen=("mutant",))
class ParentOnly(Keyed):
    """A block's key covers only the block itself and the one before it."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[-2 * size :]


@fault("kv-key-falsy", law="prefix_soundness", seen=("mutant",))
class FalsyKey(Keyed):
    """Extra key 0 is treated as no extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key or None, tokens


@fault("kv-extra-sign", law="prefix_soundness", seen=("mutant",))
class AbsoluteKey(Keyed):
    """Extra keys lose their sign."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key and abs(extra_key), tokens


@fault("kv-extra-hash", law="prefix_soundness", seen=("mutant",))
class HashOfKey(Keyed):
    """Extra keys are compared by their Python hash, so -1 and -2 are equal."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return None if extra_key is None else hash(extra_key), tokens


@fault("kv-four-adapters", law="prefix_soundness", seen=("mutant",))
class FourAdapters(KVManager):
    """Only four extra keys are told apart: the fifth one shares the key of the first."""

    def reset(self) -> None:
        super().reset()
        self._loaded: dict[int | None, int] = {}

    def _key(self, extra_key: int | None, tokens: list[int]) -> Key:
        return self._loaded.setdefault(extra_key, len(self._loaded)) % 4, tuple(tokens)


@fault("kv-key-ends", law="prefix_soundness", seen=("xinfer#405 (b)",))
class FirstAndLast(Keyed):
    """A block's key is only the number of its tokens, the first one and the last one."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[0], tokens[-1]


@fault("kv-key-text", law="prefix_soundness", seen=("mutant",))
class Concatenated(Keyed):
    """A block's key joins its token ids without a separator, so 1, 12 equals 11, 2."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), "".join(map(str, tokens))


@fault("kv-key-20-bits", law="prefix_soundness", seen=("mutant",))
class TwentyBits(Keyed):
    """A block's key uses only the low 20 bits of each token id."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token & 0xFFFFF for token in tokens)


@fault("kv-key-float", law="prefix_soundness", seen=("mutant",))
class SinglePrecision(Keyed):
    """Token ids pass through single-precision floats before they enter a key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, struct.pack(f"{len(tokens)}f", *tokens)


@fault("kv-key-modulo", law="prefix_soundness", seen=("mutant",))
class OfAVocabulary(Keyed):
    """Token ids are taken modulo a vocabulary size before they enter a key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, tuple(token % 32_000 for token in tokens)


@fault("kv-key-sum", law="prefix_soundness", seen=("mutant",))
class SumOfTokens(Keyed):
    """A block's key is a weighted sum of its tokens, and a hit is not verified."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        total = 7
        for token in tokens:
            total = (31 * total + token) % 2**32
        return extra_key, len(tokens), total


@fault("kv-key-minus-one", law="prefix_soundness", seen=("mutant",))
class NoneIsMinusOne(Keyed):
    """No extra key is written as -1, which is itself a valid extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return -1 if extra_key is None else extra_key, tokens


@fault("kv-extra-8-bits", law="prefix_soundness", seen=("mutant",))
class KeyOfEightBits(Keyed):
    """A block's key uses only the low 8 bits of the extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if extra_key is None else extra_key % 256, tokens


@fault("kv-extra-16-bits", law="prefix_soundness", seen=("LMCache#4783",))
class KeyOfSixteenBits(Keyed):
    """A block's key uses only the low 16 bits of the extra key."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key if extra_key is None else extra_key & 0xFFFF, tokens


@fault("kv-digest-20-bits", law="prefix_soundness", seen=("mutant",))
class DigestOfTwentyBits(Keyed):
    """A block's key is a digest cut to 20 bits, and a hit is not verified."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return int.from_bytes(blake2b(repr((extra_key, tokens)).encode(), digest_size=3).digest(), "big") >> 4


@fault("kv-extra-token", law="prefix_soundness", seen=("mutant",))
class KeyIsAToken(Keyed):
    """The extra key enters a block's key as if it were the first token."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return tokens if extra_key is None else (extra_key, *tokens)


@fault("kv-key-short-prompts", law="prefix_soundness", seen=("mutant",))
class KeyOfShortPrompts(Keyed):
    """Behind the fourth block, keys leave out the extra key and all but the last block."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return (extra_key, tokens) if len(tokens) <= 4 * size else (len(tokens), tokens[-size:])


@fault("kv-key-sixteen", law="prefix_soundness", seen=("mutant",))
class AllButLastOfSixteen(Keyed):
    """With blocks of 16, a block's key leaves out its last token."""

    @staticmethod
    def digest(extra_key: int | None, tokens: Sequence[int], size: int) -> object:
        return extra_key, len(tokens), tokens[:-1] if size == 16 else tokens
