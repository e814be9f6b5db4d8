"""The model of block_pool."""

from kvlockstep.models.block_pool.model import BlockPoolModel

__all__ = ["BlockPoolModel"]
