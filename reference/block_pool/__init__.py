"""A pool of reference-counted blocks with a prefix cache."""

from kvlockstep.reference.block_pool.pool import BlockPool

__all__ = ["BlockPool"]
