"""slot_prefix_cache as a radix tree: runs of tokens kept and compared as bytes, KV in torch tensors.

All entries of a node share their rows and their last use: a node is split where a row, a pin or a find ends, and
joined again when a find or an insert passes. So find, insert and eviction cost what they compare, and a constant for
each node on their way. Only a cut costs more, where the latest row of a node leaves it: one look at each branch.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvlockstep.impl.slot_prefix_cache.nodes import Node, Row
from kvlockstep.impl.slot_prefix_cache.packed_tokens import TOKEN, common, packed, unpacked
from kvlockstep.reference.errors import InvalidArgument, NotCached, NotPinned, Pinned, UnknownSlot
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match

if TYPE_CHECKING:
    import torch

    from kvlockstep.impl.slot_prefix_cache.planes import KVPlanes

_SPARE_RECORDS = 64


class SlotPrefixCache:
    """At most `capacity` entries over `slots` slots of `positions` tokens. Source: seed 000, PrefixCacheManager.

    The KV of `layers` layers lies on `device` in KVPlanes. With no layers the cache is an index alone: it needs no
    torch, and `write_kv` and `read_kv` raise InvalidArgument. Tokens are 64-bit integers. Raises InvalidArgument if a
    size is negative.
    """

    def __init__(
        self, capacity: int, slots: int, positions: int, layers: int = 2, device: str | torch.device = "cpu"
    ) -> None:
        if min(capacity, slots, positions, layers) < 0:
            raise InvalidArgument(f"capacity={capacity}, slots={slots}, positions={positions}: none may be negative")
        self._capacity = capacity * TOKEN
        self._slots = slots
        self._positions = positions
        self._planes: KVPlanes | None = None
        if layers:
            from kvlockstep.impl.slot_prefix_cache.planes import KVPlanes  # noqa: PLC0415  torch is an extra

            self._planes = KVPlanes(slots, positions, layers, device)
        self._root = Node(None, b"", 0, 0)
        self._rows: dict[int, Row] = {}
        self._size = 0
        self._clock = 0
        self._queue: list[tuple[int, int, Node]] = []
        self._records = 0

    @property
    def kv(self) -> torch.Tensor:
        """K and V, int64 [slots, positions, 2, layers]. Raises InvalidArgument without layers."""
        return self._kv().kv

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        """The slot now holds exactly `tokens`, all just used; what else it held is gone. Evicts down to capacity.

        With `pinned` the entry starts with one pin, for the request that computed it and still runs.

        Raises UnknownSlot, InvalidArgument if the sequence is empty or longer than a slot, Pinned if a pinned entry
        would be lost with the slot's former sequence.
        """
        self._check_slot(slot)
        if not 0 < len(tokens) <= self._positions:
            raise InvalidArgument(f"insert: {len(tokens)} tokens do not fit a slot of 1..{self._positions}")
        query = packed(tokens)
        self._cut(slot, self._shared_with_row(slot, query))
        self._clock += 1
        end = self._extend(query)
        self._place(slot, version, end)
        end.pins += pinned
        self._touch(end)
        self._evict()

    def find(self, tokens: Sequence[int]) -> Match:
        """The longest entry that is a prefix of `tokens`, in the slot it was inserted into last; it counts as used."""
        node, inside, depth = self._walk(packed(tokens))
        if not depth:
            return MISS
        self._clock += 1
        node = node.split(inside)
        self._touch(node)
        return Match(depth // TOKEN, node.latest, self._rows[node.latest].version)

    def pin(self, tokens: Sequence[int]) -> None:
        """Protects this entry and its prefixes until released as often. Raises NotCached."""
        node, inside = self._entry("pin", packed(tokens))
        node.split(inside).pins += 1

    def release(self, tokens: Sequence[int]) -> None:
        """Takes back one pin and evicts down to capacity. Raises NotPinned."""
        query = packed(tokens)
        node, inside, depth = self._walk(query)
        if depth < len(query) or inside < node.size or not node.pins:
            raise NotPinned(f"release: this prefix of {len(tokens)} tokens has no pin")
        node.pins -= 1
        self._offer(node)
        self._evict()

    def reuse(self, slot: int, length: int) -> None:
        """The slot is about to be written from position `length` on, so only its first `length` tokens stay.

        Raises UnknownSlot, InvalidArgument if `length` is negative, Pinned if a pinned entry would be lost.
        """
        self._check_slot(slot)
        if length < 0:
            raise InvalidArgument(f"reuse: length={length} is negative")
        self._cut(slot, length * TOKEN)

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        """Copies the KV of this entry into slot `target`, all planes at once, and returns the slot it came from.

        What `target` held beyond its common prefix with `tokens` is gone. Raises UnknownSlot, NotCached,
        Pinned if a pinned entry would be lost, InvalidArgument if the entry lies in `target` itself.
        """
        self._check_slot(target)
        query = packed(tokens)
        source = self._entry("copy_kv", query)[0].latest
        if source == target:
            raise InvalidArgument(f"copy_kv: target={target} already holds this prefix of {len(tokens)} tokens")
        self._cut(target, self._shared_with_row(target, query))
        if self._planes is not None:
            self._planes.copy(source, target, len(tokens))
        return source

    def write_kv(self, slot: int, start: int, stamps: Sequence[int]) -> None:
        """Stores one stamp per position from `start` on. Raises UnknownSlot, InvalidArgument if they do not fit."""
        self._check_slot(slot)
        stop = start + len(stamps)
        if start < 0 or stop > self._positions:
            raise InvalidArgument(f"write_kv: positions {start}..{stop - 1} are not all in the slot")
        self._kv().write(slot, start, stamps)

    def read_kv(self, slot: int, length: int) -> list[int]:
        """The stamps of the slot's first `length` positions, TORN where the planes of a position disagree.

        Raises UnknownSlot, InvalidArgument if the slot has fewer positions.
        """
        self._check_slot(slot)
        if not 0 <= length <= self._positions:
            raise InvalidArgument(f"read_kv: length={length} is not within 0..{self._positions}")
        return self._kv().read(slot, length)

    def entries(self) -> dict[tuple[int, ...], tuple[int, int]]:
        """Every cached prefix with the (slot, version) that `find` would return; uses nothing. Slow: for observers."""
        found = {}
        pending: list[tuple[Node, tuple[int, ...]]] = [(child, ()) for child in self._root.children.values()]
        while pending:
            node, above = pending.pop()
            tokens = above + unpacked(node.run)
            for length in range(len(above) + 1, len(tokens) + 1):
                found[tokens[:length]] = node.latest, self._rows[node.latest].version
            pending += [(child, tokens) for child in node.children.values()]
        return found

    def _kv(self) -> KVPlanes:
        if self._planes is None:
            raise InvalidArgument("layers=0: this cache has no KV")
        return self._planes

    def _walk(self, query: bytes) -> tuple[Node, int, int]:
        """The node where the longest cached prefix ends, how far into its run, and the length of the prefix."""
        node, inside, depth = self._root, 0, 0
        while inside == node.size and (child := node.children.get(query[depth : depth + TOKEN])) is not None:
            node = child
            inside = common(query, depth, node.data, node.start, min(node.size, len(query) - depth))
            depth += inside
        return node, inside, depth

    def _entry(self, operation: str, query: bytes) -> tuple[Node, int]:
        """The node in which this entry ends, and how far into its run. Raises NotCached."""
        node, inside, depth = self._walk(query)
        if not depth or depth < len(query):
            raise NotCached(f"{operation}: this prefix of {len(query) // TOKEN} tokens is not cached")
        return node, inside

    def _shared_with_row(self, slot: int, query: bytes) -> int:
        """Length of the common prefix of the query and what the slot holds."""
        depth = 0
        for node in self._rows[slot].end.path() if slot in self._rows else ():
            inside = common(query, depth, node.data, node.start, min(node.size, len(query) - depth))
            depth += inside
            if inside < node.size:
                break
        return depth

    def _extend(self, query: bytes) -> Node:
        """The node at whose end the query ends, made if need be."""
        node, inside, depth = self._walk(query)
        node = node.split(inside)
        if depth == len(query):
            return node
        leaf = Node(node, query[depth:], 0, len(query) - depth)
        node.children[leaf.key] = leaf
        self._size += leaf.size
        return leaf

    def _touch(self, end: Node) -> None:
        """The path to this node was used now."""
        node = end
        while node.parent is not None:
            node.used = self._clock
            node = node.join()
        self._offer(end)

    def _place(self, slot: int, version: int, end: Node) -> None:
        """Prolongs the row of the slot, which holds a prefix of the path or nothing, down to `end`."""
        former = self._rows[slot].end if slot in self._rows else self._root
        former.ends.discard(slot)
        end.ends.add(slot)
        self._rows[slot] = Row(end, version, self._clock)
        for node in end.upward():
            node.latest = slot
        for node in itertools.takewhile(lambda node: node is not former, end.upward()):
            node.rows += 1

    def _cut(self, slot: int, length: int) -> None:
        """Leaves the slot the first `length` bytes of its row. Raises Pinned if a pinned entry would be lost."""
        row = self._rows.get(slot)
        if row is None:
            return
        path = row.end.path()
        kept = i = 0
        while i < len(path) and kept + path[i].size <= length:
            kept += path[i].size
            i += 1
        if i < len(path):
            self._cut_nodes(slot, row, path[i:], length - kept)

    def _cut_nodes(self, slot: int, row: Row, beyond: list[Node], inside: int) -> None:
        """Takes the slot out of these nodes, but for the first `inside` bytes of the first one's run."""
        if any(node.pins and node.rows == 1 for node in beyond):
            raise Pinned(f"slot={slot} is the last to hold a pinned prefix")
        row.end.ends.discard(slot)
        first = beyond[0]
        stays = first if inside else first.parent
        if inside and first.rows > 1:
            stays = first.split(inside)
        for node in reversed(beyond):
            if node is not stays:
                self._leave(node, slot)
        if stays is first:
            self._shorten(first, inside)
        assert stays is not None
        self._end_row(slot, stays)

    def _leave(self, node: Node, slot: int) -> None:
        """The slot no longer holds this node's run, nor anything below."""
        node.rows -= 1
        if not node.rows:
            self._remove(node)
            return
        if node.latest == slot:
            below = (child.latest for child in node.children.values())
            node.latest = max((*node.ends, *below), key=lambda s: self._rows[s].inserted)
        self._offer(node)

    def _end_row(self, slot: int, node: Node) -> None:
        if node.parent is None:
            del self._rows[slot]
            return
        self._rows[slot].end = node
        node.ends.add(slot)
        self._offer(node)

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
        node.parent = None
        self._size -= node.size

    def _shorten(self, node: Node, size: int) -> None:
        self._size -= node.size - size
        node.narrow(node.start, node.start + size)

    def _evict(self) -> None:
        while self._size > self._capacity and self._queue:
            used, _, node = heapq.heappop(self._queue)
            node.queued = False
            over = self._size - self._capacity
            if not node.evictable:
                continue
            if used != node.used:
                self._offer(node)  # used since it was queued, so it waits longer
            elif over < node.size:
                self._shorten(node, node.size - over)
                self._offer(node)
            else:
                self._drop(node)

    def _drop(self, leaf: Node) -> None:
        """Evicts a leaf: the rows that ended in it end above."""
        parent = leaf.parent
        assert parent is not None
        self._remove(leaf)
        for slot in leaf.ends:
            self._end_row(slot, parent)

    def _offer(self, node: Node) -> None:
        """Puts a leaf without a pin into the eviction queue."""
        if node.queued or not node.evictable:
            return
        node.queued = True
        self._records += 1
        heapq.heappush(self._queue, (node.used, self._records, node))
        if len(self._queue) > 2 * len(self._rows) + _SPARE_RECORDS:
            self._sweep()

    def _sweep(self) -> None:
        """Drops the records of nodes that are gone or inner: there are no more leaves than rows."""
        kept = []
        for record in self._queue:
            if record[2].evictable:
                kept.append(record)
            else:
                record[2].queued = False
        heapq.heapify(kept)
        self._queue = kept

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._slots:
            raise UnknownSlot(f"slot={slot} is not one of 0..{self._slots - 1}")
