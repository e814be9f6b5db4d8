"""All blocks that any worker has, as chains of numbered nodes in flat tables.

Blocks that are stored one after the other get numbers one after the other, and their tokens lie side by
side. So a run of blocks is compared with a prompt by one comparison of bytes, whatever its length. Only where
a chain branches, or goes on with another number, is a dictionary asked. Its keys are the tokens themselves:
no two prefixes can collide.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence

ROOT = -1
# Tokens are kept as 64-bit numbers.
TOKEN = "q"


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as bytes, in the form in which chains keep them."""
    # An array of 4,096 tokens takes more than twice as long.
    return struct.pack(f"{len(tokens)}{TOKEN}", *tokens)


class Chains:
    """Nodes of blocks of `block_size` tokens. `holders` has the bits of those who hold a node, by its number.

    A root stands in front of the sequences of an extra key; it is a node that nobody holds. Nodes that nobody holds,
    and nothing stands behind, are given back by `let_go`.
    """

    def __init__(self, block_size: int) -> None:
        self.width = block_size * array(TOKEN).itemsize
        self.holders: list[int] = []
        self._before = array("q")
        # How many nodes stand right behind a node; and 1 if the node of the next number does.
        self._behind: list[int] = []
        self._continues = bytearray()
        self._tokens = bytearray()
        # The children that do not have the next number.
        self._branches: dict[tuple[int, bytes], int] = {}
        self._roots: dict[int | None, int] = {}
        self._keys: dict[int, int | None] = {}
        self._unused: list[int] = []

    def __len__(self) -> int:
        """The number of blocks that are known, with those in front of orphans."""
        return len(self.holders) - len(self._unused) - len(self._roots)

    def find_root(self, extra_key: int | None) -> int | None:
        """The root of an extra key, if there is one."""
        return self._roots.get(extra_key)

    def root(self, extra_key: int | None) -> int:
        """The root of an extra key, made if there is none."""
        root = self._roots.get(extra_key)
        if root is None:
            root = self._roots[extra_key] = self._place(ROOT, bytes(self.width))
            self._keys[root] = extra_key
        return root

    def is_root(self, node: int) -> bool:
        """Tells whether a node is a root."""
        return node in self._keys

    def extra_key(self, node: int) -> int | None:
        """The extra key of a root; None for another node."""
        return self._keys.get(node)

    def before(self, node: int) -> int:
        """The node in front of this one."""
        return self._before[node]

    def tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of a node's block."""
        return tuple(array(TOKEN, bytes(self._tokens[node * self.width : (node + 1) * self.width])))

    def walk(self, node: int, data: bytes) -> Iterator[tuple[int, int]]:
        """The nodes of the blocks in `data` behind a node, as far as there are any: runs of (first node, length)."""
        width, continues, tokens, branches = self.width, self._continues, self._tokens, self._branches
        at, end = 0, len(data) - len(data) % width
        while at < end:
            most = (end - at) // width
            stop = continues.find(0, node, node + most)
            length = (stop - node if stop >= 0 else most) if continues[node] else 0
            first = node + 1
            if length:
                length = self._common(tokens, first * width, data, at, length)
            if not length:
                branch = branches.get((node, data[at : at + width]))
                if branch is None:
                    return
                first, length = branch, 1
            yield first, length
            node = first + length - 1
            at += length * width

    def extend(self, node: int, data: bytes, bit: int) -> Iterator[int]:
        """Makes nodes of the blocks in `data`, the first behind `node`, held by `bit`. Yields their numbers."""
        width = self.width
        for at in range(0, len(data), width):
            block = data[at : at + width]
            new = self._place(node, block)
            self.holders[new] = bit
            self._behind[node] += 1
            if new == node + 1:
                self._continues[node] = 1
            else:
                self._branches[node, block] = new
            node = new
            yield node

    def let_go(self, bit: int, node: int) -> None:
        """The holder of this bit holds a node no more."""
        holders, behind, before_of = self.holders, self._behind, self._before
        holders[node] &= ~bit
        while not holders[node] and not behind[node]:
            before = before_of[node]
            self._unused.append(node)
            if before == ROOT:
                del self._roots[self._keys.pop(node)]
                return
            if self._continues[before] and node == before + 1:
                self._continues[before] = 0
            else:
                del self._branches[before, bytes(self._tokens[node * self.width : (node + 1) * self.width])]
            behind[before] -= 1
            node = before

    def _place(self, before: int, block: bytes) -> int:
        # Blocks are removed children first, so that the last that was given back is the first of a run.
        if self._unused:
            node = self._unused.pop()
            self._before[node] = before
            self._tokens[node * self.width : (node + 1) * self.width] = block
            return node
        self.holders.append(0)
        self._behind.append(0)
        self._continues.append(0)
        self._before.append(before)
        self._tokens += block
        return len(self.holders) - 1

    def _common(self, tokens: bytearray, start: int, data: bytes, at: int, length: int) -> int:
        """How many of `length` blocks are equal in both, from these places on."""
        width = self.width
        if tokens[start : start + length * width] == data[at : at + length * width]:
            return length
        same = 0
        while same < length:
            # The first half of what is left is equal, or it has the first difference.
            half = (length - same + 1) // 2
            low, high = same * width, (same + half) * width
            if tokens[start + low : start + high] == data[at + low : at + high]:
                same += half
            else:
                length = same + half - 1
        return same


def depths(holders: Sequence[int], runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The bits that hold a head of the runs' nodes, with its length: (bits, length), shorter ones first."""
    depth, holding = 0, -1
    for first, length in runs:
        masks = holders[first : first + length]
        # Most often the whole run has the same holders.
        for mask in masks[:1] if masks.count(masks[0]) == length else masks:
            still = mask & holding
            if still != holding:
                if depth:
                    yield holding & ~still, depth
                if not still:
                    return
                holding = still
            depth += 1
        if masks.count(masks[0]) == length:
            depth += length - 1
    if depth:
        yield holding, depth
