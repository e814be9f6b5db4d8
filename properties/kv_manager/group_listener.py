"""A listener to the events of a target with groups: it knows which lengths of a prompt every group can serve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from kvlockstep.properties.kv_manager.listener import Fact, Hit, Room, hit_text
from kvlockstep.properties.kv_manager.prefixes import Prefixes, Stored
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group, needed, owed


class GroupListener:
    """Tracks which blocks of each group can be hit, as a set, or `counting` the copies of each.

    Prefixes are numbered token by token, so that blocks of any size end at one. A key stands for the same prefix in
    every group, and is kept after its removal: children may be stored behind it. What media other than the pool have is
    not looked at. With `tiers` a load may bring back a block whose parent the pool never had.
    """

    def __init__(self, groups: Sequence[Group], counting: bool, tiers: bool = False) -> None:
        self._groups = groups
        self._counting = counting
        self._tiers = tiers
        self._prefixes = Prefixes()
        self._stored = [Stored(counting) for _ in groups]
        self._heard: list[set[Hashable]] = [set() for _ in groups]
        self._aligned = math.lcm(*(group.block_size for group in groups))

    def apply(self, event: Event) -> None:
        """Applies the parts of an event that make sense."""
        if isinstance(event, AllBlocksCleared):
            for stored in self._stored:
                stored.clear()
            return
        g, named = self._index(event), self._prefixes.named
        if g is None or event.medium is not None:
            return
        if isinstance(event, BlockStored):
            for key, prefix in self._blocks(event, self._groups[g].block_size):
                if not any(stored.copies[key] for stored in self._stored):
                    named[key] = prefix
                elif not self._prefixes.placed(named[key]):
                    for stored in self._stored:
                        stored.rename(key, named[key], prefix)
                    named[key] = prefix
                self._stored[g].store(key, named[key])
                self._heard[g].add(key)
        else:
            for key in event.keys:
                if key in named:
                    self._stored[g].remove(key, named[key])

    def known(self, hit: Hit) -> int:
        """The longest length that every group can serve with what is stored; at most all tokens but one.

        It ends with a block of every group.
        """
        chain = self._chain(hit)
        heads = [self._head(g, chain) for g, group in enumerate(self._groups) if group.kind == "full"]
        last = min([len(hit.tokens) - 1, *heads]) // self._aligned * self._aligned
        return next((n for n in range(last, 0, -self._aligned) if self._lacks(chain, n, full=False) is None), 0)

    def contradiction(self, fact: Fact) -> str | None:
        """Says why the fact contradicts the earlier events; None if it does not."""
        if isinstance(fact, Hit):
            return self._wrong_hit(fact)
        if isinstance(fact, Room):
            return self._wrong_room(fact)
        if isinstance(fact, AllBlocksCleared):
            return None
        if not isinstance(fact, BlockStored | BlockRemoved):
            return f"{fact!r} is no event"
        if fact.medium is not None:
            return None
        g = self._index(fact)
        if g is None:
            return f"{type(fact).__name__} of group {fact.group!r}; the groups are 0 to {len(self._groups) - 1}"
        return self._wrong_store(fact, g) if isinstance(fact, BlockStored) else self._wrong_removal(fact, g)

    def _wrong_store(self, event: BlockStored, g: int) -> str | None:
        size = self._groups[g].block_size
        if event.block_size != size or len(event.tokens) != len(event.keys) * size:
            tokens, blocks = counted(len(event.tokens), "token"), counted(len(event.keys), "block")
            return f"BlockStored of {tokens} in {blocks} of {event.block_size}; group {g} has blocks of {size}"
        lost = self._tiers and event.parent is not None and event.parent not in self._prefixes.named
        wrong = self._prefixes.wrong_parent(event, " in any group") if not lost else None
        if wrong is not None:
            return wrong
        told: dict[Hashable, int] = {}
        for key, prefix in self._blocks(event, size):
            stored = any(stored.copies[key] for stored in self._stored)
            known = told.setdefault(key, self._prefixes.named[key] if stored else prefix)
            if known != prefix and self._prefixes.placed(known) and self._prefixes.placed(prefix):
                return f"BlockStored gives the key {key!r} to a second prefix"
        return None

    def _wrong_removal(self, event: BlockRemoved, g: int) -> str | None:
        """A listener with a set accepts a second removal of a key; a counting one does not."""
        for key, times in Counter(event.keys).items():
            if key not in self._heard[g] or (self._counting and times > self._stored[g].copies[key]):
                return f"BlockRemoved of {key!r}, which is not stored in group {g}"
        return None

    def _wrong_hit(self, fact: Hit) -> str | None:
        """A hit may be longer than what is known if it ends within a block of a group that reads nothing there.

        With a load it may have any length from there on: what tiers have is not followed. The whole prompt of a request
        that has waited may have been loaded, of which the last token is computed again: so its hit may end one token
        short, or within a block. Nor is a hit too long as long as a block is stored that cannot be placed.
        """
        short = fact.cached == len(fact.tokens) - 1 or fact.cached % self._aligned > 0
        beyond = fact.loads or (fact.waited and short) or not self._all_placed()
        lacking = None if beyond else self._lacks(self._chain(fact), fact.cached)
        if lacking is not None:
            return f"{hit_text(fact)}, but by the events {lacking}"
        known = self.known(fact) if not fact.waited else 0
        return f"{hit_text(fact)}, but the events say {known}" if known > fact.cached else None

    def _wrong_room(self, fact: Room) -> str | None:
        groups = [g for g, group in enumerate(self._groups) if fact.pool in (None, group.pool)]
        stored = sum(self._stored[g].copies.total() for g in groups)
        if stored <= fact.blocks:
            return None
        of_pool = f" of pool {fact.pool!r}" if fact.pool is not None else ""
        left = f"the events leave {counted(stored, 'block')}{of_pool} stored"
        return f"{left}, but by {fact.said} only {fact.blocks} are not free"

    def _lacks(self, chain: Sequence[int], n: int, full: bool = True) -> str | None:
        """Says what a group has not stored of what the first forward behind `n` tokens reads; None if nothing.

        Without `full` the groups of full attention are left out.
        """
        for g, group in enumerate(self._groups):
            if group.kind == "full" and not full:
                continue
            size = group.block_size
            if n % size and (group.kind == "state" or needed(group, n, n)):
                return f"no block of group {g} ({group}) ends there"
            for place in owed(group, n):
                end = (place + 1) * size
                if not self._stored[g].keys[chain[end]]:
                    return f"group {g} ({group}) lacks the block up to position {end}"
        return None

    def _head(self, g: int, chain: Sequence[int]) -> int:
        """Counts the tokens at the head of a request whose blocks a group has all stored."""
        size, keys = self._groups[g].block_size, self._stored[g].keys
        return next((end - size for end in range(size, len(chain), size) if not keys[chain[end]]), len(chain) - 1)

    def _chain(self, hit: Hit) -> list[int]:
        """The prefixes of a request, from that of no token up to that of all."""
        chain = [self._prefixes.root(hit.extra_key)]
        for token in hit.tokens:
            chain.append(self._prefixes.number(chain[-1], token))
        return chain

    def _blocks(self, event: BlockStored, size: int) -> Iterator[tuple[Hashable, int]]:
        """Yields the keys of an event, each with the number of its prefix."""
        prefix = self._prefixes.before(event)
        for i, key in enumerate(event.keys):
            for token in event.tokens[i * size : (i + 1) * size]:
                prefix = self._prefixes.number(prefix, token)
            yield key, prefix

    def _all_placed(self) -> bool:
        """Tells whether every stored block is one of a prefix that is known from its beginning on."""
        if self._prefixes.all_placed:
            return True
        named, placed = self._prefixes.named, self._prefixes.placed
        return all(placed(named[key]) for stored in self._stored for key, copies in stored.copies.items() if copies)

    def _index(self, event: BlockStored | BlockRemoved) -> int | None:
        """The group of an event, None if there is no such group."""
        return event.group if 0 <= event.group < len(self._groups) else None
