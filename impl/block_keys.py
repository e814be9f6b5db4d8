"""Block keys: one hash for each full block of a growing request, over raw int32 tokens.

The hash of a block is the sum of all tokens up to its end, each times a random 64-bit coefficient of its position, and
of the digests of the extra keys, modulo 2**64: multilinear hashing, which is chained (a block adds to the sum of the
block before it), incremental and made of vector operations. Two different prefixes of one length meet with probability
2**-(64 - t) at most, where 2**t divides all differences of their tokens; the coefficients are drawn anew in each
process, so nobody can aim. It need not be cryptographic: whoever looks a hash up verifies tokens and parent.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvlockstep.reference.block_pool_contract import ExtraKey, HashFunction
from kvlockstep.reference.contracts import InvalidArgument

Words = npt.NDArray[np.uint64]

TOKEN_BYTES = 4
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FOLD, _DROP = np.uint64(32), np.uint64(4)


class Coefficients:
    """Random 64-bit words, one per token position, as many as are asked for."""

    def __init__(self) -> None:
        self._random = np.random.PCG64()
        self._words: Words = np.empty(0, np.uint64)

    def __call__(self, start: int, end: int) -> Words:
        """The words of positions `start` to `end` - 1."""
        missing = end - len(self._words)
        if missing > 0:
            more = self._random.random_raw(max(missing, len(self._words), 1 << 12))
            self._words = np.concatenate([self._words, more])
        return self._words[start:end]


_coefficients = Coefficients()


class RequestKeys:
    """The block keys of one request. `hashes` has one hash for each full block; extending hashes only what is new.

    `extra_keys[i]` enters the key of block i and so the keys of all behind it. `verified` belongs to the pool: the last
    cached prefix that it found to be the request's, and its length in blocks.
    """

    __slots__ = ("_block_size", "_extra_keys", "_hash", "_sum", "_tokens", "hashes", "verified")

    def __init__(self, block_size: int, extra_keys: Sequence[ExtraKey], hash_function: HashFunction | None) -> None:
        self._block_size = block_size
        self._extra_keys = tuple(extra_keys)
        self._hash = hash_function
        self._tokens = array("i")
        self._sum = 0
        self.hashes: list[int] = []
        self.verified: tuple[Any, int] = (None, 0)

    def __len__(self) -> int:
        return len(self.hashes)

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """More tokens are known; an int32 array is taken as it is. Raises InvalidArgument if one is no 32-bit integer."""
        if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32:
            self._tokens.frombytes(memoryview(np.ascontiguousarray(tokens)).cast("B"))
        else:
            try:
                self._tokens += array("i", tokens)
            except (OverflowError, TypeError) as error:
                raise InvalidArgument(f"extend: a token is no integer of 32 bits: {error}") from None
        end = len(self._tokens) // self._block_size
        if end > len(self.hashes):
            if self._hash is None:
                self._hash_blocks(len(self.hashes), end)
            else:
                self._call_hash(self._hash, end)

    def copy(self) -> RequestKeys:
        """The keys of a request that starts with the same tokens."""
        twin = RequestKeys(self._block_size, self._extra_keys, self._hash)
        twin._tokens = self._tokens[:]
        twin._sum = self._sum
        twin.hashes = self.hashes.copy()
        twin.verified = self.verified
        return twin

    def tokens(self, start: int, end: int) -> bytes:
        """The tokens of blocks `start` to `end` - 1, 4 bytes each."""
        return self._tokens[start * self._block_size : end * self._block_size].tobytes()

    def extra_key(self, block: int) -> ExtraKey:
        """The extra key of a block."""
        return self._extra_keys[block] if block < len(self._extra_keys) else None

    def _hash_blocks(self, start: int, end: int) -> None:
        size = self._block_size
        words = np.frombuffer(self._tokens, np.int32)[start * size : end * size].astype(np.uint64)
        coefficients = _coefficients(start * size, end * size)
        sums: Words = np.einsum("ij,ij->i", words.reshape(-1, size), coefficients.reshape(-1, size))
        sums[:1] += np.uint64(self._sum)
        for block in range(start, min(end, len(self._extra_keys))):
            if self._extra_keys[block] is not None:
                sums[block - start : block - start + 1] += _digest(block, self._extra_keys[block])
        np.cumsum(sums, out=sums)
        self._sum = int(sums[-1])
        # The upper half of a sum is the better one; dict wants it below, and at most 60 bits to be quick.
        sums ^= sums >> _FOLD
        sums *= _MULTIPLIER
        sums >>= _DROP
        self.hashes += sums.tolist()

    def _call_hash(self, hash_function: HashFunction, end: int) -> None:
        size = self._block_size
        for block in range(len(self.hashes), end):
            own = tuple(self._tokens[block * size : (block + 1) * size])
            parent = self.hashes[-1] if self.hashes else 0
            self.hashes.append(hash_function(parent, own, self.extra_key(block)))


def _digest(block: int, extra_key: ExtraKey) -> np.uint64:
    digest = hashlib.blake2b(repr((block, extra_key)).encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "big"))
