"""How many pages of KV a byte budget holds. Source: seed 001, get_mha_cache_per_page and get_num_pages_for_kv_cache."""

from __future__ import annotations

from kvlockstep.reference.contracts import InvalidArgument


def heads_per_rank(kv_heads: int, tensor_parallel: int) -> int:
    """KV heads that each rank keeps: an equal share, or a copy of one head if there are more ranks than heads.

    Raises InvalidArgument if neither comes out even.
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
