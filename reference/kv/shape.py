"""The shape of a token's KV, and how much of it a byte budget holds.

Source: seed 001, get_mha_cache_per_page and get_num_pages_for_kv_cache.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlockstep.reference.errors import InvalidArgument

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
CODES = ("float8_e4m3fn", "int8")
SCALE_BYTES = 4


class KVShape(NamedTuple):
    """The KV of one token: K and V of `heads` x `head_dim` elements of `dtype` in each of `layers` layers.

    Rows that are `given` in another dtype are kept as codes of `dtype`, with a float32 scale for each head.
    """

    layers: int
    heads: int
    head_dim: int
    dtype: str
    given: str = ""

    def check(self) -> None:
        """Raises InvalidArgument if a size is not positive, or a dtype none of ITEM_BYTES or of no use for codes."""
        if min(self.layers, self.heads, self.head_dim) < 1 or self.dtype not in ITEM_BYTES:
            raise InvalidArgument(f"shape={self}: sizes are positive and the dtype one of {', '.join(ITEM_BYTES)}")
        if self.given and (self.dtype not in CODES or self.given in CODES or self.given not in ITEM_BYTES):
            raise InvalidArgument(f"shape={self}: codes are {' or '.join(CODES)}, and floats are given")

    @property
    def item_bytes(self) -> int:
        """Bytes of one element as it is kept."""
        return ITEM_BYTES[self.dtype]

    @property
    def given_bytes(self) -> int:
        """Bytes of one element as it is given."""
        return ITEM_BYTES[self.given or self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V in all layers, with their scales."""
        head = self.head_dim * self.item_bytes + (SCALE_BYTES if self.given else 0)
        return 2 * self.layers * self.heads * head

    def shard(self, ranks: int) -> KVShape:
        """Returns the shape on one of `ranks` tensor-parallel ranks: its share of the heads, or one shared head.

        Raises InvalidArgument if heads and ranks do not divide one another.
        """
        return self._replace(heads=heads_per_rank(self.heads, ranks))


def blocks_for(tokens: int, block_size: int) -> int:
    """Returns the fewest blocks of `block_size` tokens that hold that many tokens."""
    return -(-tokens // block_size)


def blocks_within(budget: int, block_size: int, shape: KVShape) -> int:
    """Returns the number of blocks of `block_size` tokens that fit into `budget` bytes.

    Raises InvalidArgument for a negative budget, a block size below 1 or a bad shape.
    """
    shape.check()
    return pages_within(budget, block_size * shape.token_bytes)


def heads_per_rank(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that each rank keeps: an equal share, or a copy of one head if there are more ranks than heads.

    Raises InvalidArgument if heads and ranks do not divide one another.
    """
    if kv_heads < 1 or tensor_parallel < 1:
        raise InvalidArgument(f"kv_heads={kv_heads}, tensor_parallel={tensor_parallel}: less than 1")
    if kv_heads % tensor_parallel == 0:
        return kv_heads // tensor_parallel
    if tensor_parallel % kv_heads == 0:
        return 1
    raise InvalidArgument(f"kv_heads={kv_heads} do not divide over tensor_parallel={tensor_parallel} ranks")


def page_bytes(
    page_size: int, layers: int, kv_heads: int, head_dim: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """Bytes of one page on one rank: K and V of every layer. Raises InvalidArgument."""
    if min(page_size, layers, head_dim, element_bytes) < 1:
        raise InvalidArgument(
            f"page_size={page_size}, layers={layers}, head_dim={head_dim}, element_bytes={element_bytes}: less than 1"
        )
    return 2 * layers * heads_per_rank(kv_heads, tensor_parallel) * head_dim * page_size * element_bytes


def pages_within(budget: int, bytes_per_page: int) -> int:
    """The most pages that fit into `budget` bytes. Raises InvalidArgument."""
    if budget < 0 or bytes_per_page < 1:
        raise InvalidArgument(f"budget={budget}, bytes_per_page={bytes_per_page}: less than 0 or 1")
    return budget // bytes_per_page
