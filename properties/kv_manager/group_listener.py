"""A listener to the events of a target with groups: it knows which lengths of a prompt every group can serve."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from kvlockstep.properties.kv_manager.listener import Fact, Fetched, Hit, Room, hit_text
from kvlockstep.properties.kv_manager.prefixes import Prefixes, Stored
from kvlockstep.properties.law import agree, counted
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvlockstep.reference.kv_manager.groups.contract import Group, needed, owed


class GroupListener:
    """Tracks which blocks of each group can be hit, as a set, or `counting` the copies of each.

    Prefixes are numbered token by token, so that blocks of any size end at one. A key stands for the same prefix in
    every group and medium, and is kept after its removal: children may be stored behind it. With `tiers` a load may
    bring back a block whose parent the pool never had.
    """

    def __init__(self, groups: Sequence[Group], counting: bool, tiers: bool = False) -> None:
        self._groups = groups
        self._counting = counting
        self._tiers = tiers
        self._prefixes = Prefixes()
        # Of each medium what each group has; None is the pool.
        self._media: dict[str | None, list[Stored]] = {}
        self._pool = self._medium(None)
        self._aligned = math.lcm(*(group.block_size for group in groups))

    def apply(self, event: Event) -> None:
        """Applies the parts of an event that make sense."""
        if isinstance(event, AllBlocksCleared):
            for stored in self._everywhere():
                stored.clear()
            return
        g, named = self._index(event), self._prefixes.named
        if g is None:
            return
        there = self._medium(event.medium)[g]
        if isinstance(event, BlockStored):
            for key, prefix in self._blocks(event, self._groups[g].block_size):
                if not self._is_stored(key):
                    named[key] = prefix
                elif not self._prefixes.placed(named[key]):
                    for stored in self._everywhere():
                        stored.rename(key, named[key], prefix)
                    named[key] = prefix
                there.store(key, named[key])
        else:
            for key in event.keys:
                if key in named:
                    there.remove(key, named[key])

    def known(self, hit: Hit) -> int:
        """The longest length that every group can serve with what the pool has; at most all tokens but one.

        It ends with a block of every group.
        """
        chain = self._chain(hit.extra_key, hit.tokens)
        heads = [self._head(g, chain) for g, group in enumerate(self._groups) if group.kind == "full"]
        last = min([len(hit.tokens) - 1, *heads]) // self._aligned * self._aligned
        return next((n for n in range(last, 0, -self._aligned) if self._lacks(chain, n, full=False) is None), 0)

    def come_back(self, blocks: Sequence[tuple[int | None, Sequence[int]]]) -> None:
        """Blocks were loaded together. Their parents may be blocks that the pool never had, so no order is due."""

    def computed(self, extra_key: int | None, tokens: Sequence[int], start: int, stop: int) -> None:
        """A request has computed these tokens itself, which matters only where an order is due."""

    def forget(self, back: bool) -> None:
        """What has gone from a medium is there no more for loads."""
        for stored in self._everywhere():
            stored.forget()

    def contradiction(self, fact: Fact) -> str | None:
        """Says why the fact contradicts the earlier events; None if it does not."""
        if isinstance(fact, Hit):
            return self._wrong_hit(fact)
        if isinstance(fact, Room):
            return self._wrong_room(fact)
        if isinstance(fact, Fetched):
            return self._wrong_load(fact)
        if isinstance(fact, AllBlocksCleared):
            return None
        if not isinstance(fact, BlockStored | BlockRemoved):
            return f"{fact!r} is no event"
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
            known = told.setdefault(key, self._prefixes.named[key] if self._is_stored(key) else prefix)
            if known != prefix and self._prefixes.placed(known) and self._prefixes.placed(prefix):
                return f"BlockStored gives the key {key!r} to a second prefix"
        return None

    def _wrong_removal(self, event: BlockRemoved, g: int) -> str | None:
        """A listener with a set accepts a second removal of a key; a counting one does not."""
        stored = self._medium(event.medium)[g]
        where = f" of {event.medium}" if event.medium is not None else ""
        for key, times in Counter(event.keys).items():
            if key not in stored.ever or (self._counting and times > stored.copies[key]):
                return f"BlockRemoved of {key!r}, which is not stored in group {g}{where}"
        return None

    def _wrong_hit(self, fact: Hit) -> str | None:
        """A hit may be longer than what is known if it ends within a block of a group that reads nothing there.

        With a load it may need blocks that tiers have, and have any length if no event speaks of their tier. The whole
        prompt of a request that loads, or has waited for that, may have been loaded, of which the last token is
        computed again: so its hit may end one token short, or within a block. Nor is a hit too long as long as a block
        is stored that cannot be placed.
        """
        short = fact.cached == len(fact.tokens) - 1 or fact.cached % self._aligned > 0
        beyond = fact.silent or ((fact.loads or fact.waited) and short) or not self._all_placed()
        chain = self._chain(fact.extra_key, fact.tokens)
        lacking = None if beyond else self._lacks(chain, fact.cached, anywhere=fact.loads)
        if lacking is not None:
            return f"{hit_text(fact)}, but by the events {lacking}"
        known = self.known(fact) if not fact.waited else 0
        return f"{hit_text(fact)}, but the events say {known}" if known > fact.cached else None

    def _wrong_load(self, fact: Fetched) -> str | None:
        of_medium = self._media.get(fact.medium)
        if of_medium is None or of_medium[fact.group].was_there(self._chain(fact.extra_key, fact.tokens)[-1]):
            return None  # a tier that is never spoken of is none of the listener's business
        what = f"the block of group {fact.group} behind {list(fact.tokens)}"
        return f"{what} is loaded from {fact.medium}, where no event says that it is" if self._all_placed() else None

    def _wrong_room(self, fact: Room) -> str | None:
        groups = [g for g, group in enumerate(self._groups) if fact.pool in (None, group.pool)]
        of_medium = self._media.get(fact.medium)
        stored = sum(of_medium[g].copies.total() for g in groups) if of_medium is not None else 0
        if stored <= fact.blocks:
            return None
        left = f"the events leave {counted(stored, 'block')}"
        if fact.medium is not None:
            return f"{left} stored in {fact.medium}, but by {fact.said} only {fact.blocks} can be hit there"
        of_pool = f" of pool {fact.pool!r}" if fact.pool is not None else ""
        return f"{left}{of_pool} stored, but by {fact.said} only {fact.blocks} {agree(fact.blocks, 'are')} not free"

    def _lacks(self, chain: Sequence[int], n: int, full: bool = True, anywhere: bool = False) -> str | None:
        """Says what the pool has not of what the first forward behind `n` tokens reads in a group; None if nothing.

        Without `full` the groups of full attention are left out. What is stored `anywhere` may be in a tier.
        """
        media = list(self._media.values()) if anywhere else [self._pool]
        for g, group in enumerate(self._groups):
            if group.kind == "full" and not full:
                continue
            size = group.block_size
            if n % size and (group.kind == "state" or needed(group, n, n)):
                return f"no block of group {g} ({group}) ends there"
            for place in owed(group, n):
                end = (place + 1) * size
                if not any(of_medium[g].keys[chain[end]] for of_medium in media):
                    return f"group {g} ({group}) lacks the block up to position {end}"
        return None

    def _head(self, g: int, chain: Sequence[int]) -> int:
        """Counts the tokens at the head of a request whose blocks a group has all stored."""
        size, keys = self._groups[g].block_size, self._pool[g].keys
        return next((end - size for end in range(size, len(chain), size) if not keys[chain[end]]), len(chain) - 1)

    def _chain(self, extra_key: int | None, tokens: Sequence[int]) -> list[int]:
        """The prefixes of a sequence, from that of no token up to that of all."""
        chain = [self._prefixes.root(extra_key)]
        for token in tokens:
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
        return all(placed(named[key]) for stored in self._everywhere() for key, n in stored.copies.items() if n)

    def _is_stored(self, key: Hashable) -> bool:
        return any(stored.copies[key] for stored in self._everywhere())

    def _medium(self, name: str | None) -> list[Stored]:
        return self._media.setdefault(name, [Stored(self._counting) for _ in self._groups])

    def _everywhere(self) -> Iterator[Stored]:
        return itertools.chain.from_iterable(self._media.values())

    def _index(self, event: BlockStored | BlockRemoved) -> int | None:
        """The group of an event, None if there is no such group."""
        return event.group if 0 <= event.group < len(self._groups) else None
