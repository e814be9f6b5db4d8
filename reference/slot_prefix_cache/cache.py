"""slot_prefix_cache: prefixes and their slots. Source: seed 000, PrefixCacheManager.

A slot holds the KV of one token sequence from position 0 on, so every prefix of that sequence is an
entry, and an entry is as good as the slots that still hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.reference.errors import InvalidArgument, NotCached, NotPinned, Pinned, UnknownSlot
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match

Prefix = tuple[int, ...]


class Row(NamedTuple):
    """Sequence that one slot holds. `inserted` orders the rows: `find` returns the latest that has a prefix."""

    tokens: Prefix
    version: int
    inserted: int


class SlotPrefixCache:
    """At most `capacity` entries over `slots` slots of `positions` tokens; evicts leaves, least recently used first.

    Pinned entries and their prefixes are never evicted; if all leaves are pinned the cache stays over capacity.
    Raises InvalidArgument if a size is negative.
    """

    def __init__(self, capacity: int, slots: int, positions: int) -> None:
        if min(capacity, slots, positions) < 0:
            raise InvalidArgument(f"capacity={capacity}, slots={slots}, positions={positions}: none may be negative")
        self._capacity = capacity
        self._positions = positions
        self._rows: dict[int, Row] = {}
        self._used: dict[Prefix, int] = {}
        self._pins: Counter[Prefix] = Counter()
        self._kv = [[0] * positions for _ in range(slots)]
        self._clock = 0

    def insert(self, tokens: Sequence[int], slot: int, version: int, pinned: bool = False) -> None:
        """The slot now holds exactly `tokens`, all just used; its other content is gone. Evicts down to capacity.

        With `pinned` the entry starts with one pin, for the request that computed it and still runs.

        Raises UnknownSlot, InvalidArgument if the sequence is empty or longer than a slot, Pinned if a pinned entry
        would be lost with the slot's former sequence.
        """
        row = tuple(tokens)
        self._check_slot(slot)
        if not 0 < len(row) <= self._positions:
            raise InvalidArgument(f"insert: {len(row)} tokens do not fit a slot of 1..{self._positions}")
        self._clock += 1
        self._set_row(slot, Row(row, version, self._clock))
        self._touch(row)
        if pinned:
            self.pin(row)
        self._evict()

    def find(self, tokens: Sequence[int]) -> Match:
        """The longest entry that is a prefix of `tokens`, in the slot it was inserted into last; it counts as used."""
        for length in range(len(tokens), 0, -1):
            prefix = tuple(tokens[:length])
            if prefix in self._used:
                self._clock += 1
                self._touch(prefix)
                slot = self._slot_of(prefix)
                return Match(length, slot, self._rows[slot].version)
        return MISS

    def pin(self, tokens: Sequence[int]) -> None:
        """Protects this entry and its prefixes until released as often. Raises NotCached."""
        prefix = tuple(tokens)
        self._check_entry("pin", prefix)
        self._pins[prefix] += 1

    def release(self, tokens: Sequence[int]) -> None:
        """Takes back one pin and evicts down to capacity. Raises NotPinned."""
        prefix = tuple(tokens)
        if prefix not in self._pins:
            raise NotPinned(f"release: {list(prefix)} has no pin")
        self._pins[prefix] -= 1
        if not self._pins[prefix]:
            del self._pins[prefix]
        self._evict()

    def reuse(self, slot: int, length: int) -> None:
        """The slot is about to be written from position `length` on, so only its first `length` tokens stay.

        Raises UnknownSlot, InvalidArgument if `length` is negative, Pinned if a pinned entry would be lost.
        """
        self._check_slot(slot)
        if length < 0:
            raise InvalidArgument(f"reuse: length={length} is negative")
        if slot in self._rows:
            self._set_row(slot, self._cut(slot, length))

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        """Copies the KV of this entry into slot `target` and returns the slot it came from.

        `target` loses everything beyond its common prefix with `tokens`. Raises UnknownSlot, NotCached,
        Pinned if a pinned entry would be lost, InvalidArgument if the entry lies in `target` itself.
        """
        prefix = tuple(tokens)
        self._check_slot(target)
        self._check_entry("copy_kv", prefix)
        source = self._slot_of(prefix)
        if source == target:
            raise InvalidArgument(f"copy_kv: target={target} already holds {list(prefix)}")
        if target in self._rows:
            self._set_row(target, self._cut(target, common_length(prefix, self._rows[target].tokens)))
        self._kv[target][: len(prefix)] = self._kv[source][: len(prefix)]
        return source

    def write_kv(self, slot: int, start: int, stamps: Sequence[int]) -> None:
        """Stores one stamp per position from `start` on. Raises UnknownSlot, InvalidArgument if they do not fit."""
        self._check_slot(slot)
        if start < 0 or start + len(stamps) > self._positions:
            raise InvalidArgument(f"write_kv: positions {start}..{start + len(stamps) - 1} are not all in the slot")
        self._kv[slot][start : start + len(stamps)] = stamps

    def read_kv(self, slot: int, length: int) -> list[int]:
        """The stamps of the slot's first `length` positions. Raises UnknownSlot, InvalidArgument if it has fewer."""
        self._check_slot(slot)
        if not 0 <= length <= self._positions:
            raise InvalidArgument(f"read_kv: length={length} is not within 0..{self._positions}")
        return self._kv[slot][:length]

    def entries(self) -> dict[Prefix, tuple[int, int]]:
        """Every cached prefix with the (slot, version) that `find` would return; uses nothing."""
        latest_last = sorted(self._rows.items(), key=lambda item: item[1].inserted)
        return {row.tokens[:n]: (s, row.version) for s, row in latest_last for n in range(1, len(row.tokens) + 1)}

    def _slot_of(self, prefix: Prefix) -> int:
        holders = [s for s, row in self._rows.items() if row.tokens[: len(prefix)] == prefix]
        return max(holders, key=lambda s: self._rows[s].inserted)

    def _cut(self, slot: int, length: int) -> Row | None:
        row = self._rows[slot]
        return Row(row.tokens[:length], row.version, row.inserted) if length else None

    def _set_row(self, slot: int, row: Row | None) -> None:
        rows = {s: r for s, r in self._rows.items() if s != slot}
        if row is not None:
            rows[slot] = row
        cached = {r.tokens[:n] for r in rows.values() for n in range(1, len(r.tokens) + 1)}
        lost = [list(p) for p in self._pins if p not in cached]
        if lost:
            raise Pinned(f"slot={slot} is the last to hold the pinned prefix {lost[0]}")
        self._rows = rows
        self._used = {p: t for p, t in self._used.items() if p in cached}

    def _touch(self, prefix: Prefix) -> None:
        for length in range(1, len(prefix) + 1):
            self._used[prefix[:length]] = self._clock

    def _evict(self) -> None:
        while len(self._used) > self._capacity:
            inner = {p[:-1] for p in self._used}
            leaves = [p for p in self._used if p not in inner and p not in self._pins]
            if not leaves:
                return
            victim = min(leaves, key=lambda p: self._used[p])
            shorter = {s: row._replace(tokens=victim[:-1]) for s, row in self._rows.items() if row.tokens == victim}
            self._rows = {s: row for s, row in {**self._rows, **shorter}.items() if row.tokens}
            del self._used[victim]

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._kv):
            raise UnknownSlot(f"slot={slot} is not one of 0..{len(self._kv) - 1}")

    def _check_entry(self, operation: str, prefix: Prefix) -> None:
        if prefix not in self._used:
            raise NotCached(f"{operation}: {list(prefix)} is not cached")


def common_length(a: Prefix, b: Prefix) -> int:
    """Length of the longest common prefix."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
