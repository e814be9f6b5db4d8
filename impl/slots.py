"""Slots and blocks: slot = block * block_size + offset."""

from __future__ import annotations

from collections.abc import Iterable


def slots_of(blocks: Iterable[int], block_size: int) -> list[int]:
    """The slots of these blocks, block after block."""
    return [slot for block in blocks for slot in range(block * block_size, (block + 1) * block_size)]
