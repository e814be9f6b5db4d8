"""A pool of blocks for several groups: free blocks, references, and published blocks by key."""

from __future__ import annotations

from collections.abc import Iterable

# The group, the extra key, and all tokens up to the end of the block.
Key = tuple[int, int | None, tuple[int, ...]]


class Pool:
    """`blocks` blocks. `idle` are published ones that nobody holds, least recently released first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.free = list(range(blocks))
        self.refs = [0] * blocks
        self.cached: dict[Key, int] = {}
        self.key_of: dict[int, Key] = {}
        self.idle: dict[int, None] = {}

    def room(self, hit: Iterable[int] = ()) -> int:
        """Returns the number of blocks that can be taken when the blocks of `hit` are kept."""
        return len(self.free) + len(self.idle) - len(self.idle.keys() & hit)

    def take(self) -> int:
        """Takes a block; evicts one if none is free."""
        if not self.free:
            self.evict(next(iter(self.idle)))
        block = self.free.pop(0)
        self.refs[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more request holds the block."""
        self.idle.pop(block, None)
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One request fewer holds the block."""
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self.key_of:
                self.idle[block] = None
            else:
                self.free.append(block)

    def publish(self, key: Key, block: int) -> None:
        """The block can be hit under the key from now on, unless another one can already."""
        if key not in self.cached and block not in self.key_of:
            self.cached[key] = block
            self.key_of[block] = key

    def evict(self, block: int) -> None:
        """An idle block becomes free."""
        del self.idle[block]
        del self.cached[self.key_of.pop(block)]
        self.free.append(block)
