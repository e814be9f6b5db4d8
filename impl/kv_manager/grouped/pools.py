"""A pool of blocks that groups share: blank blocks as a stack, published ones that nobody holds by age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvlockstep.impl.kv_manager.grouped.announcer import Announcer
from kvlockstep.impl.kv_manager.grouped.prefixes import Prefix, PrefixIndex


class GroupPool:
    """`blocks` blocks, published at prefixes of `index`. Taking, holding, releasing and evicting one cost O(1).

    `announcer` hears of what is published and evicted, if there is one.
    """

    def __init__(self, blocks: int, index: PrefixIndex, announcer: Announcer | None = None) -> None:
        self.blank = list(range(blocks - 1, -1, -1))
        self.holders = [0] * blocks
        self.evictions = 0
        self._index = index
        self._announcer = announcer
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._published: list[tuple[Prefix, int] | None] = [None] * blocks

    @property
    def room(self) -> int:
        """Free blocks, blank or published."""
        return len(self.blank) + len(self._idle)

    def idle_among(self, blocks: Iterable[int]) -> int:
        """Counts the blocks that nobody holds."""
        return sum(not self.holders[block] for block in blocks)

    def take(self, n: int) -> list[int]:
        """Takes `n` blocks, blank ones first, then the published one that was released first."""
        taken = [self.blank.pop() if self.blank else self._evict() for _ in range(n)]
        for block in taken:
            self.holders[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """Each block gets one holder more."""
        holders = self.holders
        for block in blocks:
            if not holders[block]:
                del self._idle[block]
            holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Each block loses a holder, the last block first, so that the end of a prefix is evicted first."""
        holders, published = self.holders, self._published
        for block in reversed(blocks):
            holders[block] -= 1
            if holders[block]:
                continue
            if published[block] is None:
                self.blank.append(block)
            else:
                self._idle[block] = None

    def publish(self, block: int, prefix: Prefix, g: int) -> None:
        """The block can be hit at the prefix, unless another one can, or it is published already."""
        if prefix.blocks[g] is None and self._published[block] is None:
            prefix.blocks[g] = block
            prefix.users += 1
            self._published[block] = prefix, g
            if self._announcer is not None:
                self._announcer.stored(prefix, g)

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
        if self._announcer is not None:
            self._announcer.removed(prefix, g)
        self._index.leave(prefix)
        self.evictions += 1
        return block
