"""The nodes of the radix tree, and the rows of slots that end in them. All sizes are in bytes."""

from __future__ import annotations

from collections.abc import Iterator

from kvlockstep.impl.slot_prefix_cache.packed_tokens import TOKEN


class Node:
    """A run of tokens, `data[start:stop]`, and what its entries share; without a parent it is the root, or gone.

    `rows`: how many slots hold the run; `latest`: the one inserted last; `ends`: those that hold nothing beyond it.
    `pins` are on the entry at its end. `queued`: it has a record in the eviction queue.
    """

    __slots__ = ("children", "data", "ends", "latest", "parent", "pins", "queued", "rows", "start", "stop", "used")

    def __init__(self, parent: Node | None, data: bytes, start: int, stop: int) -> None:
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.data = data
        self.start = start
        self.stop = stop
        self.ends: set[int] = set()
        self.rows = 0
        self.latest = -1
        self.used = 0
        self.pins = 0
        self.queued = False

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> bytes:
        return self.data[self.start : self.start + TOKEN]

    @property
    def run(self) -> bytes:
        return self.data[self.start : self.stop]

    def narrow(self, start: int, stop: int) -> None:
        """Keeps a part of the run, and a copy of it once half of the bytes kept alive are of no use."""
        self.start, self.stop = start, stop
        if 2 * (stop - start) < len(self.data):
            self.data = self.data[start:stop]
            self.start, self.stop = 0, stop - start

    @property
    def evictable(self) -> bool:
        """True for a leaf without a pin."""
        return self.parent is not None and not self.children and not self.pins

    def upward(self) -> Iterator[Node]:
        """This node and those above it, but for the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        return list(self.upward())[::-1]

    def split(self, inside: int) -> Node:
        """The node that ends `inside` bytes into this run: this one, or a new one above what is left of it."""
        if inside == self.size:
            return self
        parent = self.parent
        assert parent is not None
        middle = self.start + inside
        # The shorter part gets a copy of its bytes, so that no split costs more than half of a run.
        if 2 * inside <= self.size:
            upper = Node(parent, self.data[self.start : middle], 0, inside)
            self.narrow(middle, self.stop)
        else:
            upper = Node(parent, self.data, self.start, middle)
            self.data, self.start, self.stop = self.data[middle : self.stop], 0, self.stop - middle
            upper.narrow(upper.start, upper.stop)
        upper.rows, upper.latest, upper.used = self.rows, self.latest, self.used
        upper.children[self.key] = self
        parent.children[upper.key] = upper
        self.parent = upper
        return upper

    def join(self) -> Node:
        """Takes in the runs above that need no end of their own, and returns the parent."""
        above = self.parent
        assert above is not None
        runs = [self.run]
        while above.parent is not None and len(above.children) == 1 and not above.ends and not above.pins:
            runs.append(above.run)
            joined, above = above, above.parent
            joined.parent = None
        if len(runs) > 1:
            self.data = b"".join(reversed(runs))
            self.start, self.stop = 0, len(self.data)
            self.parent = above
            above.children[self.key] = self
        return above


class Row:
    """Content of a slot: the path from the root to the node `end`. `inserted` orders the rows."""

    __slots__ = ("end", "inserted", "version")

    def __init__(self, end: Node, version: int, inserted: int) -> None:
        self.end = end
        self.version = version
        self.inserted = inserted
