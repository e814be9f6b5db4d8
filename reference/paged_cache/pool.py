"""Blocks of a paged_cache: free, held and idle ones, and the order in which idle ones are evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvlockstep.reference.errors import OutOfSlots


@dataclass
class Block:
    """`holders` sequences hold it at index `depth` of their tables. `uses`: how often it was taken, hit or forked."""

    holders: int = 0
    depth: int = 0
    allocated: int = 0
    released: int = 0
    uses: int = 0


class PagedPool:
    """`blocks` blocks. One in no table is free or, if registered, idle: it can be hit until it is evicted.

    `policy` evicts first: "lru" the block that lost its last holder first, "fifo" the one taken first, "frequency"
    the one used least, then least recently. Among blocks taken or released together the deepest goes first.
    """

    def __init__(self, blocks: int, policy: str) -> None:
        self.blocks = [Block() for _ in range(blocks)]
        self.free = list(range(blocks))
        self.registered: dict[int, int] = {}
        self.counts: Counter[str] = Counter()
        self._policy = policy
        self._clock = 0

    def idle(self) -> list[int]:
        """The idle blocks, the next to be evicted first."""
        return sorted((b for b in self.registered.values() if not self.blocks[b].holders), key=self._rank)

    def lookup(self, keys: Sequence[int]) -> list[int]:
        """The blocks of the longest run of leading keys, each registered at its own depth."""
        hit: list[int] = []
        for key in keys:
            block = self.registered.get(key)
            if block is None or self.blocks[block].depth != len(hit):
                break
            hit.append(block)
        return hit

    def frozen(self, block: int) -> bool:
        """True if a holder must not write it: another one holds it too, or it is registered."""
        return self.blocks[block].holders > 1 or block in self.registered.values()

    def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
        """Raises OutOfSlots if `n` blocks cannot be taken without evicting one of `hit`."""
        idle = [block for block in self.idle() if block not in hit]
        if n > len(self.free) + len(idle):
            raise OutOfSlots(f"{operation}: {n} blocks, but {len(self.free)} are free and {len(idle)} idle")

    def take(self, depth: int, n: int) -> list[int]:
        """Takes `n` blocks for a table, from index `depth` on: free ones first in, first out, then evicted ones."""
        self._clock += 1
        taken = []
        for i in range(n):
            if not self.free:
                self.evict(self.idle()[0])
            taken.append(self.free.pop(0))
            self.blocks[taken[-1]] = Block(holders=1, depth=depth + i, allocated=self._clock, uses=1)
        self.counts["allocations"] += n
        return taken

    def hold(self, blocks: Sequence[int]) -> None:
        """One more sequence holds these blocks."""
        for block in blocks:
            self.blocks[block].holders += 1
            self.blocks[block].uses += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence gives up these blocks of its table, last one first."""
        self._clock += 1
        for block in reversed(blocks):
            self.blocks[block].holders -= 1
            self.blocks[block].released = self._clock
            if not self.blocks[block].holders and not self.frozen(block):
                self._put_back(block)

    def evict(self, block: int) -> None:
        """An idle block loses its key and is free."""
        self.registered = {key: b for key, b in self.registered.items() if b != block}
        self.counts["evictions"] += 1
        self._put_back(block)

    def _put_back(self, block: int) -> None:
        self.counts["deallocations"] += 1
        self.free.append(block)

    def _rank(self, number: int) -> tuple[int, ...]:
        block = self.blocks[number]
        match self._policy:
            case "lru":
                return block.released, -block.depth
            case "fifo":
                return block.allocated, -block.depth
        return block.uses, block.released, -block.depth
