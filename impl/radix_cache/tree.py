"""The tree of radix_cache: path-compressed runs of tokens, compared by memcmp, evicted in constant time per victim."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvlockstep.reference.radix_cache.contract import NotLocked, StaleHandle

Slots = npt.NDArray[np.int32]
TOKEN = 8
STRIDE = 4096


class Node:
    """A run of tokens behind its parent's, up to position `end` of the sequence; `slots` int32, one per token.

    `run` holds the tokens as int64 bytes, perhaps with evicted ones behind them. `key` is its first page, under which
    the parent knows it; below the root together with the extra key, if there is one. `only` is the child if there has
    been no other, else perhaps None. `locks` counts the handles locked at or below this node. The root is its own
    parent.
    """

    __slots__ = ("children", "end", "key", "locks", "only", "parent", "run", "slots")

    def __init__(self, parent: Node | None, key: Hashable, run: bytes, slots: Slots, end: int, locks: int) -> None:
        self.children: dict[Hashable, Node] = {}
        self.only: Node | None = None
        self.parent = parent or self
        self.key = key
        self.run = run
        self.slots = slots
        self.end = end
        self.locks = locks

    def adopt(self, child: Node) -> None:
        """The child is new below this node, or takes the place of the one with its key."""
        self.children[child.key] = child
        self.only = child if len(self.children) == 1 else None

    def lose(self, child: Node) -> None:
        """The child is no longer below this node. One that stays alone is not looked for: it may be far in the dict."""
        del self.children[child.key]
        self.only = None


class Spot(NamedTuple):
    """End of the cached part of a sequence: the end of `node`, and `common` tokens more in its child `inside`."""

    node: Node
    inside: Node | None
    common: int

    @property
    def length(self) -> int:
        """Tokens cached."""
        return self.node.end + self.common


class Handle:
    """The first `length` tokens of a path, which end with `node`. `locks` are those taken through this handle.

    A node that is split stays the lower part, and one that is evicted ends earlier; so a handle is stale if and only if
    its node no longer ends at `length`, or `root` is not the tree's any more.
    """

    __slots__ = ("length", "locks", "node", "root")

    def __init__(self, root: Node, node: Node) -> None:
        self.root = root
        self.node = node
        self.length = node.end
        self.locks = 0


class RadixTree:
    """Sequences of int64 tokens as bytes. Everything counts in tokens; lengths are multiples of `page_size`.

    All nodes without locks stand in one OrderedDict by last use, children before their parents: whatever uses a node
    uses its parent as well, directly afterwards, and an unlock counts as a use. So the first one is always a leaf and
    the one to evict, however many there are. A match splits where it ends, so all tokens of a node have one last use.
    """

    def __init__(self, page_size: int) -> None:
        self._width = page_size * TOKEN
        self.clear()

    def clear(self) -> None:
        """Forgets everything; all handles are stale."""
        self.root = Node(None, None, b"", np.empty(0, np.int32), 0, 1)
        self.evictable = self.protected = 0
        self._idle: OrderedDict[Node, None] = OrderedDict()

    def find(self, data: memoryview, extra_key: Hashable = None) -> Spot:
        """Finds the end of the longest cached prefix of whole pages. Changes nothing."""
        width = self._width
        stop = len(data) // width * width
        node, offset = self.root, 0
        while offset < stop:
            child = node.only if offset else None  # without a look at its key, which lies in its run as well
            if child is None:
                key: Hashable = bytes(data[offset : offset + width])
                child = node.children.get(key if offset or extra_key is None else (extra_key, key))
                if child is None:
                    break
            end = child.end * TOKEN
            if end > stop or not child.run.startswith(data[offset:end]):
                common = _common(child.run, data[offset : min(stop, end)]) // width * width // TOKEN
                return Spot(node, child if common else None, common)
            node, offset = child, end
        return Spot(node, None, 0)

    def reach(self, spot: Spot) -> Node:
        """The node that ends at the spot, split off if there is none, just used."""
        node = spot.node if spot.inside is None else self._split(spot.inside, spot.common)
        self.use(node)
        return node

    def use(self, node: Node) -> None:
        """The node and its path are the most recently used."""
        to_end = self._idle.move_to_end
        while not node.locks:
            to_end(node)
            node = node.parent

    def gather(self, node: Node) -> Slots:
        """The slots of the node's path, a new array."""
        pieces, root = [], self.root
        while node is not root:
            pieces.append(node.slots)
            node = node.parent
        if not pieces:
            return self.root.slots.copy()
        pieces.reverse()
        return np.concatenate(pieces)

    def extend(self, node: Node, data: memoryview, slots: Slots, extra_key: Hashable = None) -> Node:
        """Caches the whole pages of `data` behind the path of `node`, in `slots`, and uses all of it; the last node."""
        start, stop = node.end * TOKEN, len(data) // self._width * self._width
        parent = node
        if start < stop:
            key: Hashable = bytes(data[start : start + self._width])
            if not start and extra_key is not None:
                key = (extra_key, key)
            node = Node(parent, key, bytes(data[start:stop]), slots.astype(np.int32), stop // TOKEN, 0)
            parent.adopt(node)
            self._idle[node] = None
            self.evictable += len(slots)
        self.use(node)
        return node

    def lock(self, handle: Handle, above: Node | None = None) -> None:
        """One more lock on the handle's path, up to but without the node `above` if given. Raises StaleHandle."""
        self.check(handle)
        handle.locks += 1
        node, stop, moved = handle.node, above or self.root, 0
        while node is not stop:
            if not node.locks:
                del self._idle[node]
                moved += node.end - node.parent.end
            node.locks += 1
            node = node.parent
        self.evictable -= moved
        self.protected += moved

    def unlock(self, handle: Handle) -> None:
        """Takes one lock of the handle back and uses its path. Raises StaleHandle, NotLocked."""
        self.check_locked(handle)
        handle.locks -= 1
        node, moved = handle.node, 0
        while node is not self.root:
            node.locks -= 1
            if not node.locks:
                self._idle[node] = None
                moved += node.end - node.parent.end
            node = node.parent
        self.evictable += moved
        self.protected -= moved

    def advance(self, handle: Handle, node: Node) -> Handle:
        """Moves one lock of a locked handle to a new one that ends with `node`, at or below the handle's node."""
        further = Handle(self.root, node)
        self.lock(further, handle.node)
        handle.locks -= 1
        return further

    def check(self, handle: Handle) -> None:
        """Raises StaleHandle."""
        if handle.node.end != handle.length or handle.root is not self.root:
            raise StaleHandle(f"what the handle of {handle.length} tokens names has been evicted or reset")

    def check_locked(self, handle: Handle) -> None:
        """Raises StaleHandle, NotLocked."""
        self.check(handle)
        if not handle.locks:
            raise NotLocked(f"the handle of {handle.length} tokens is not locked")

    def covers(self, node: Node, handle: Handle) -> bool:
        """True if the path of `node` leads through the handle's node."""
        while node.end > handle.length:
            node = node.parent
        return node is handle.node

    def evict(self, tokens: int) -> Slots:
        """Evicts so many tokens, at most `evictable`; their slots, page by page in the order of eviction."""
        pieces: list[Slots] = []
        left = tokens
        while left > 0:
            node, _ = self._idle.popitem(last=False)
            parent = node.parent
            size = node.end - parent.end
            if size <= left:
                parent.lose(node)
                pieces.append(node.slots)
                node.end = parent.end
                left -= size
            else:
                pieces.append(node.slots[size - left :])
                self._cut(node, size - left)
                left = 0
        self.evictable -= tokens
        if not pieces:
            return self.root.slots.copy()
        pieces.reverse()
        page_size = self._width // TOKEN
        slots: Slots = np.concatenate(pieces).reshape(-1, page_size)[::-1].reshape(-1)
        return slots

    def idle(self) -> Iterator[Node]:
        """The nodes without locks in the order of eviction."""
        return iter(self._idle)

    def walk(self) -> Iterator[Node]:
        """Every node but the root, parents first, children in the order of their keys' tokens."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            if node is not self.root:
                yield node
            todo += sorted(node.children.values(), key=tokens_of, reverse=True)

    def _split(self, node: Node, tokens: int) -> Node:
        """Makes the first `tokens` of a node's run its new parent, used at once; the node stays the lower part."""
        parent, size = node.parent, tokens * TOKEN
        upper = Node(parent, node.key, node.run[:size], node.slots[:tokens].copy(), parent.end + tokens, node.locks)
        parent.adopt(upper)
        node.run = node.run[size : len(node.slots) * TOKEN]
        node.slots = node.slots[tokens:].copy()
        node.key = node.run[: self._width]
        node.parent = upper
        upper.adopt(node)
        if not upper.locks:
            self._idle[upper] = None
        return upper

    def _cut(self, node: Node, size: int) -> None:
        """Keeps the first `size` tokens of the node evicted from last, which stays the next one to evict.

        Its storage shrinks only when half of it is unused, so that cutting page after page off stays cheap.
        """
        node.end = node.parent.end + size
        node.slots = node.slots[:size]
        if 2 * size * TOKEN < len(node.run):
            node.run = node.run[: size * TOKEN]
            node.slots = node.slots.copy()
        self._idle[node] = None
        self._idle.move_to_end(node, last=False)


def tokens_of(node: Node) -> list[int]:
    """The tokens of a node's run."""
    found: list[int] = np.frombuffer(node.run, np.int64, len(node.slots)).tolist()
    return found


def as_bytes(tokens: Any) -> memoryview:
    """Tokens as int64 bytes; of a contiguous buffer of int64 without a copy, so only for as long as a call lasts."""
    if not len(tokens):
        return memoryview(b"")
    if isinstance(tokens, (list, tuple)):
        return memoryview(array("q", tokens)).cast("B")
    try:
        view = memoryview(tokens)
    except TypeError:
        view = np.asarray(tokens).data
    if view.format not in ("q", "l") or not view.c_contiguous:
        view = np.ascontiguousarray(tokens, np.int64).data
    return view.cast("B")


def _common(run: bytes, data: memoryview) -> int:
    """The length in bytes of the common prefix in whole tokens; `run` is at least as long as `data`."""
    count = len(data) // TOKEN
    ours, theirs = np.frombuffer(run, np.int64, count), np.frombuffer(data, np.int64, count)
    for start in range(0, count, STRIDE):
        differs = ours[start : start + STRIDE] != theirs[start : start + STRIDE]
        first = int(differs.argmax())
        if differs[first]:
            return (start + first) * TOKEN
    return len(data)
