"""KV events: what a manager announces of the blocks that can be hit, and what a router's index hears of its workers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class BlockStored(NamedTuple):
    """Blocks can be hit from now on, named by `keys`, in the order of the sequence.

    `tokens` are those of all these blocks, `block_size` to a block. `parent` is the key of the block before the first,
    None at the start of a sequence. `extra_key` is the sequence's; behind a parent it may be left out. `medium` is the
    name of the tier that has the blocks, None for the pool (vLLM says "GPU" of that one, and "CPU" or "STORAGE").

    With groups, `group` is the one whose blocks they are, with its block size. A key stands for a prefix whatever the
    group, and the parent may be a block of another group: that of a state need never have been stored as a state.
    """

    keys: tuple[Hashable, ...]
    parent: Hashable | None
    tokens: tuple[int, ...]
    block_size: int
    extra_key: int | None = None
    medium: str | None = None
    group: int = 0


class BlockRemoved(NamedTuple):
    """Blocks of a medium and a group cannot be hit any more; with a counting listener, one copy of each."""

    keys: tuple[Hashable, ...]
    medium: str | None = None
    group: int = 0


class AllBlocksCleared(NamedTuple):
    """No block can be hit any more, in any medium or group."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
