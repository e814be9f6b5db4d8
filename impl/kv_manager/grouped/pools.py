"""A pool of blocks that groups share: blank blocks as a stack, published ones that nobody holds by age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix


class GroupPool:
    """`blocks` blocks. Taking, holding, releasing and evicting one cost O(1)."""

    def __init__(self, blocks: int) -> None:
        self.blank = list(range(blocks - 1, -1, -1))
        self.holders = [0] * blocks
        self.evictions = 0
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._published: list[tuple[Prefix, int] | None] = [None] * blocks

    @property
    def room(self) -> int:
        """Free blocks, blank or published."""
        return len(self.blank) + len(self._idle)

    def idle_among(self, blocks: Iterable[int]) -> int:
        """Counts the blocks that nobody holds."""
        return sum(not self.holders[block] for block in blocks)

    def take(self) -> int:
        """Takes a blank block, or the published one that was released first."""
        block = self.blank.pop() if self.blank else self._evict()
        self.holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """The block gets one holder more."""
        if not self.holders[block]:
            del self._idle[block]
        self.holders[block] += 1

    def release(self, block: int) -> None:
        """The block loses a holder."""
        self.holders[block] -= 1
        if not self.holders[block]:
            if self._published[block] is None:
                self.blank.append(block)
            else:
                self._idle[block] = None

    def publish(self, block: int, prefix: Prefix, g: int) -> None:
        """The block can be hit at the prefix, unless another one can, or it is published already."""
        if prefix.blocks[g] is None and self._published[block] is None:
            prefix.blocks[g] = block
            self._published[block] = prefix, g

    def owned(self, block: int) -> bool:
        """True if the block has one holder and cannot be hit."""
        return self.holders[block] == 1 and self._published[block] is None

    def evict_all(self) -> None:
        """Makes every published block that nobody holds blank."""
        while self._idle:
            self.blank.append(self._evict())

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        published = self._published[block]
        assert published is not None
        prefix, g = published
        prefix.blocks[g] = self._published[block] = None
        self.evictions += 1
        return block
