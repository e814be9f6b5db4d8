"""Block keys: one hash for each full block of a growing request, over raw int32 tokens.

The hash of a block is a sum modulo 2**64 over everything up to its end: each token times a random coefficient of its
position, the digests of the extra keys, and a constant per block, since a block of zeros would add nothing otherwise.
This is multilinear hashing: chained (a block adds to the sum of the block before it), incremental, and made of vector
operations. Two different prefixes meet with a probability of 2**-(60 - t), where 2**t divides all differences of their
tokens; coefficients are drawn again in each process, so nobody can aim. It need not be cryptographic: every lookup of a
hash verifies tokens and parent. Who wants keys that others can trust as well, in another process or machine, names one
of DIGESTS instead: the key is the digest of the parent's digest, the tokens, and the extra key if there is one.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from operator import mul
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction
from kvlockstep.reference.errors import InvalidArgument

NamedHash = Literal["sha256", "blake2b"]
Words = npt.NDArray[np.uint64]

TOKEN_BYTES = 4
FEW_BLOCKS = 3
WORD = (1 << 64) - 1
FEW_TOKENS = 64
DIGEST_BYTES = 32
DIGESTS: dict[NamedHash, Callable[[bytes], Any]] = {
    "sha256": hashlib.sha256,
    "blake2b": partial(hashlib.blake2b, digest_size=DIGEST_BYTES),
}
PER_BLOCK = 0xD1B54A32D192ED03
MULTIPLIER = 0x9E3779B97F4A7C15
_PER_BLOCK, _MULTIPLIER, _HALF, _REST = (np.uint64(n) for n in (PER_BLOCK, MULTIPLIER, 32, 4))


class Coefficients:
    """Random 64-bit words, one per token position, as many as are asked for. `lists` has those of blocks, by size."""

    def __init__(self) -> None:
        self._random = np.random.PCG64()
        self._words: Words = np.empty(0, np.uint64)
        self.lists: dict[int, list[list[int]]] = {}

    def of_blocks(self, size: int, blocks: int) -> list[list[int]]:
        """The words of at least the first `blocks` blocks of so many tokens, a list of ints each."""
        lists = self.lists.setdefault(size, [])
        if len(lists) < blocks:
            end = max(blocks, 2 * len(lists))
            lists += self(len(lists) * size, end * size).reshape(-1, size).tolist()
        return lists

    def __call__(self, start: int, end: int) -> Words:
        """The words of positions `start` to `end` - 1."""
        missing = end - len(self._words)
        if missing > 0:
            more = self._random.random_raw(max(missing, len(self._words), 1 << 12))
            self._words = np.concatenate([self._words, more])
        return self._words[start:end]


_coefficients = Coefficients()


def packed(tokens: Sequence[int] | npt.NDArray[np.int32]) -> bytes:
    """The tokens as int32. Raises InvalidArgument if one is not an integer of 32 bits."""
    try:
        return struct.pack(f"{len(tokens)}i", *tokens)  # half the time of array("i", tokens)
    except struct.error as error:
        raise InvalidArgument(f"extend: a token is not an integer of 32 bits: {error}") from None


class RequestKeys:
    """The block keys of one request, which grows; each block is hashed once, when somebody asks.

    `extra_keys[i]` enters the key of block i and so the keys of all behind it. `verified` belongs to the pool: the last
    cached prefix that it found to be the request's, and its length in blocks.
    """

    __slots__ = ("_block_size", "_digest", "_extra_keys", "_hash", "_hashes", "_sum", "_tokens", "verified")

    def __init__(
        self, block_size: int, extra_keys: Sequence[ExtraKey], hash_function: HashFunction | NamedHash | None
    ) -> None:
        self._block_size = block_size
        self._extra_keys = tuple(extra_keys)
        self._hash = hash_function
        self._tokens = array("i")
        self._sum = 0
        self._digest = bytes(DIGEST_BYTES)
        self._hashes: list[int] = []
        self.verified: tuple[Any, int] = (None, 0)

    def __len__(self) -> int:
        return len(self._tokens) // self._block_size

    @property
    def hashes(self) -> list[int]:
        """One hash for each full block. Not to be changed."""
        start, end = len(self._hashes), len(self._tokens) // self._block_size
        if start < end:
            if self._hash is None:
                if end - start <= FEW_BLOCKS:
                    self._hash_few(start, end)
                else:
                    self._hash_many()
            elif isinstance(self._hash, str):
                self._digest_blocks(DIGESTS[self._hash])
            else:
                self._call_hash(self._hash)
        return self._hashes

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """More tokens are known; those of an int32 array are taken as they are. Raises InvalidArgument."""
        if isinstance(tokens, list) and len(tokens) <= FEW_TOKENS:
            try:
                self._tokens.fromlist(tokens)
            except (OverflowError, TypeError) as error:
                raise InvalidArgument(f"extend: a token is not an integer of 32 bits: {error}") from None
        elif isinstance(tokens, array) and tokens.typecode == "i":
            self._tokens += tokens
        elif isinstance(tokens, np.ndarray) and tokens.dtype == np.int32:
            self._tokens.frombytes(np.ascontiguousarray(tokens).data.cast("B"))
        else:
            self._tokens.frombytes(packed(tokens))

    def append(self, token: int) -> None:
        """One more token is known. Raises InvalidArgument as `extend`."""
        try:
            self._tokens.append(token)
        except (OverflowError, TypeError) as error:
            raise InvalidArgument(f"append: not an integer of 32 bits: {error}") from None

    def copy(self) -> RequestKeys:
        """The keys of a request that starts with the same tokens."""
        copy = RequestKeys(self._block_size, self._extra_keys, self._hash)
        copy._tokens = self._tokens[:]
        copy._sum = self._sum
        copy._digest = self._digest
        copy._hashes = self._hashes.copy()
        copy.verified = self.verified
        return copy

    def tokens(self, start: int, end: int) -> bytes:
        """The tokens of blocks `start` to `end` - 1, 4 bytes each."""
        return self._tokens[start * self._block_size : end * self._block_size].tobytes()

    def extra_keys(self, start: int) -> Iterator[ExtraKey]:
        """The extra keys of block `start` and of all behind it, without end."""
        return chain(self._extra_keys[start:], repeat(None))

    def _hash_few(self, start: int, end: int) -> None:
        """As `_hash_many`, for a few blocks in less time than it takes to start vector operations."""
        size, tokens, total = self._block_size, self._tokens, self._sum
        hashes, extra_keys = self._hashes, len(self._extra_keys)
        coefficients = _coefficients.lists.get(size, ())
        if len(coefficients) < end:
            coefficients = _coefficients.of_blocks(size, end)
        for block in range(start, end):
            at = block * size
            total += sum(map(mul, coefficients[block], tokens[at : at + size]), PER_BLOCK)
            if block < extra_keys:
                total += self._extra(block)
            total &= WORD
            hashes.append(((total ^ total >> 32) * MULTIPLIER & WORD) >> 4)
        self._sum = total

    def _hash_many(self) -> None:
        size, start, end = self._block_size, len(self._hashes), len(self)
        words = np.frombuffer(self._tokens, np.int32)[start * size : end * size].astype(np.uint64)
        coefficients = _coefficients(start * size, end * size)
        sums: Words = np.einsum("ij,ij->i", words.reshape(-1, size), coefficients.reshape(-1, size))
        sums += _PER_BLOCK
        for block in range(start, min(end, len(self._extra_keys))):
            sums[block - start : block - start + 1] += np.uint64(self._extra(block))
        np.add.accumulate(sums, out=sums)
        sums += np.uint64(self._sum)
        self._sum = int(sums[-1])
        # The upper half of a sum is the better one; dict wants it below, and at most 60 bits to be quick.
        sums ^= sums >> _HALF
        sums *= _MULTIPLIER
        sums >>= _REST
        self._hashes += sums.tolist()

    def _extra(self, block: int) -> int:
        """Term of the sum for the extra key of a block."""
        extra_key = self._extra_keys[block] if block < len(self._extra_keys) else None
        if extra_key is None:
            return 0
        return int.from_bytes(hashlib.blake2b(repr((block, extra_key)).encode(), digest_size=8).digest(), "big")

    def _digest_blocks(self, digest: Callable[[bytes], Any]) -> None:
        start, width = len(self._hashes), self._block_size * TOKEN_BYTES
        data = self.tokens(start, len(self))
        given, parent, to_int = self._extra_keys, self._digest, int.from_bytes
        for block, at in enumerate(range(0, len(data), width), start):
            own = parent + data[at : at + width]
            if block < len(given) and given[block] is not None:
                own += repr(given[block]).encode()
            parent = digest(own).digest()
            self._hashes.append(to_int(parent, "little"))
        self._digest = parent

    def _call_hash(self, hash_function: HashFunction) -> None:
        size, start = self._block_size, len(self._hashes)
        tokens = tuple(self._tokens[start * size : len(self) * size])
        parent = self._hashes[-1] if self._hashes else 0
        for at, extra_key in zip(range(0, len(tokens), size), self.extra_keys(start), strict=False):
            parent = hash_function(parent, tokens[at : at + size], extra_key)
            self._hashes.append(parent)
