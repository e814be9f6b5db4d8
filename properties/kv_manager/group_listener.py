"""A listener to the events of a target with groups: it knows which lengths of a prompt every group can serve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from kvlockstep.properties.kv_manager.listener import Fact, Hit, Room
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group, needed

# The extra key, and all tokens up to the end of a block.
Prefix = tuple[int | None, tuple[int, ...]]


class GroupListener:
    """Tracks which blocks of each group can be hit, as a set, or `counting` the copies of each.

    A key stands for one prefix in every group, and is kept after its removal: children may be stored behind it.
    """

    def __init__(self, groups: Sequence[Group], counting: bool) -> None:
        self._groups = groups
        self._counting = counting
        self._named: dict[Hashable, Prefix] = {}
        self._stored: list[Counter[Prefix]] = [Counter() for _ in groups]
        self._aligned = math.lcm(*(group.block_size for group in groups))

    def apply(self, event: Event) -> None:
        """Applies the parts of an event that make sense."""
        if isinstance(event, AllBlocksCleared):
            for stored in self._stored:
                stored.clear()
        elif self._knows(event.group):
            stored = self._stored[event.group]
            if isinstance(event, BlockStored):
                for key, prefix in self._prefixes(event):
                    self._named[key] = prefix
                    stored[prefix] = stored[prefix] + 1 if self._counting else 1
            else:
                for prefix in (self._named[key] for key in event.keys if key in self._named):
                    stored[prefix] = max(0, stored[prefix] - 1)

    def known(self, hit: Hit) -> int:
        """The longest length that every group can serve with what is stored; at most all tokens but one.

        It ends with a block of every group.
        """
        last = (len(hit.tokens) - 1) // self._aligned * self._aligned
        return next((n for n in range(last, 0, -self._aligned) if self._lacks(hit, n) is None), 0)

    def contradiction(self, fact: Fact) -> str | None:
        """Says why the fact contradicts the earlier events; None if it does not."""
        if isinstance(fact, BlockStored | BlockRemoved) and not self._knows(fact.group):
            return f"{type(fact).__name__} of group {fact.group!r}; the groups are 0 to {len(self._groups) - 1}"
        if isinstance(fact, BlockStored):
            return self._wrong_store(fact)
        if isinstance(fact, BlockRemoved):
            return self._wrong_removal(fact)
        if isinstance(fact, Hit):
            return self._wrong_hit(fact)
        if isinstance(fact, Room):
            return self._wrong_room(fact)
        return None if isinstance(fact, AllBlocksCleared) else f"{fact!r} is no event"

    def _wrong_store(self, event: BlockStored) -> str | None:
        size = self._groups[event.group].block_size
        if event.block_size != size or len(event.tokens) != len(event.keys) * size:
            tokens, blocks = counted(len(event.tokens), "token"), counted(len(event.keys), "block")
            return (
                f"BlockStored of {tokens} in {blocks} of {event.block_size}; group {event.group} has blocks of {size}"
            )
        if event.parent is not None and event.parent not in self._named:
            return f"BlockStored behind {event.parent!r}, which was never stored in any group"
        if event.parent is not None and event.extra_key not in (None, self._named[event.parent][0]):
            return f"BlockStored under extra key {event.extra_key} behind {event.parent!r}, which has another"
        for key, prefix in self._prefixes(event):
            if self._named.get(key, prefix) != prefix and any(stored[self._named[key]] for stored in self._stored):
                return f"BlockStored gives the key {key!r} to a second prefix"
        return None

    def _wrong_removal(self, event: BlockRemoved) -> str | None:
        """A listener with a set accepts a second removal of a key; a counting one does not."""
        stored = self._stored[event.group]
        for key, times in Counter(event.keys).items():
            if key not in self._named or (self._counting and times > stored[self._named[key]]):
                return f"BlockRemoved of {key!r}, which is not stored in group {event.group}"
        return None

    def _wrong_hit(self, fact: Hit) -> str | None:
        under = f" under key {fact.extra_key}" if fact.extra_key is not None else ""
        hit = (
            f"{counted(fact.cached, 'token')} of {list(fact.tokens)}{under} {'was' if fact.cached == 1 else 'were'} hit"
        )
        lacking = self._lacks(fact, fact.cached)
        if lacking is not None:
            return f"{hit}, but by the events {lacking}"
        known = self.known(fact)
        return f"{hit}, but the events say {known}" if known > fact.cached else None

    def _wrong_room(self, fact: Room) -> str | None:
        groups = [g for g, group in enumerate(self._groups) if fact.pool in (None, group.pool)]
        stored = sum(self._stored[g].total() for g in groups)
        if stored <= fact.blocks:
            return None
        of_pool = f" of pool {fact.pool!r}" if fact.pool is not None else ""
        left = f"the events leave {counted(stored, 'block')}{of_pool} stored"
        return f"{left}, but by {fact.said} only {fact.blocks} are not free"

    def _lacks(self, hit: Hit, n: int) -> str | None:
        """Says what a group has not stored of what the first forward behind `n` tokens reads; None if nothing."""
        for g, group in enumerate(self._groups):
            for place in _read_first(group, n):
                end = (place + 1) * group.block_size
                if end > n or not self._stored[g][hit.extra_key, tuple(hit.tokens[:end])]:
                    return f"group {g} ({group}) lacks the block up to position {end}"
        return None

    def _prefixes(self, event: BlockStored) -> Iterator[tuple[Hashable, Prefix]]:
        """Yields the keys of an event, each with its prefix."""
        size = self._groups[event.group].block_size
        extra_key, tokens = self._named.get(event.parent, (event.extra_key, ()))
        for i, key in enumerate(event.keys):
            tokens = (*tokens, *event.tokens[i * size : (i + 1) * size])
            yield key, (extra_key, tokens)

    def _knows(self, group: object) -> bool:
        return isinstance(group, int) and 0 <= group < len(self._groups)


def _read_first(group: Group, n: int) -> range:
    """Returns the places of the blocks that the first forward behind `n` cached tokens reads."""
    stop = -(-n // group.block_size)
    if group.kind == "state":
        return range(max(0, stop - 1), stop)
    return range(needed(group, n, n).start // group.block_size, stop)
