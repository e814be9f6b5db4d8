"""Idle blocks in the order in which they are evicted: by recency in O(1), by any other rank in O(log n)."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush

Rank = tuple[int, int]


class RecencyQueue:
    """First in, first out, with removal from the middle. `rank` is not looked at."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, block: int, rank: Rank) -> None:
        """Puts a block behind all others."""
        self._blocks[block] = None

    def remove(self, block: int) -> None:
        """Takes a block out, wherever it stands."""
        del self._blocks[block]

    def pop(self) -> int:
        """Takes the first block out."""
        return self._blocks.popitem(last=False)[0]

    def order(self) -> list[int]:
        """The blocks, first one first."""
        return list(self._blocks)


class RankQueue:
    """Lowest rank first; ranks are unique. A removed block leaves its entry in the heap, where it is skipped later.

    The heap is rebuilt when more than half of it is stale, so that an operation costs O(log n) on average.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []

    def __len__(self) -> int:
        return len(self._ranks)

    def add(self, block: int, rank: Rank) -> None:
        """Puts a block where its rank belongs."""
        self._ranks[block] = rank
        heappush(self._heap, (rank, block))

    def remove(self, block: int) -> None:
        """Takes a block out, wherever it stands."""
        del self._ranks[block]
        if len(self._heap) > 2 * len(self._ranks) + 16:
            self._heap = [(rank, b) for b, rank in self._ranks.items()]
            heapify(self._heap)

    def pop(self) -> int:
        """Takes the block of the lowest rank out."""
        while True:
            rank, block = heappop(self._heap)
            if self._ranks.get(block) == rank:
                del self._ranks[block]
                return block

    def order(self) -> list[int]:
        """The blocks by rank."""
        return sorted(self._ranks, key=self._ranks.__getitem__)
