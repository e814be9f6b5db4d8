"""A listener to the events of a kv_manager, as a router has one: it knows which prefixes can be hit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

ROOT = 0


class Hit(NamedTuple):
    """A request was admitted with `cached` tokens."""

    tokens: Sequence[int]
    extra_key: int | None
    cached: int


class Room(NamedTuple):
    """`blocks` blocks are not free: live requests hold them, or they can be hit."""

    blocks: int


class Listener:
    """Tracks which blocks of `block_size` tokens can be hit, as a set, or `counting` the copies of each.

    Prefixes are numbered: each stands for the prefix before it and the tokens of its last block, the first for an
    extra key. The prefix of a key is kept after its removal, since children may still be stored behind it.
    """

    def __init__(self, block_size: int, counting: bool) -> None:
        self._size = block_size
        self._counting = counting
        self._numbers: dict[tuple[int, tuple[int | None, ...]], int] = {}
        self._roots: dict[int, int] = {}
        self._named: dict[Hashable, int] = {}
        self._copies: Counter[Hashable] = Counter()
        self._keys: Counter[int] = Counter()

    def apply(self, event: Event) -> None:
        """Applies the parts of an event that make sense."""
        if isinstance(event, BlockStored):
            for key, prefix in self._prefixes(event):
                self._store(key, prefix)
        elif isinstance(event, BlockRemoved):
            for key in event.keys:
                self._remove(key)
        else:
            self._copies.clear()
            self._keys.clear()

    def known(self, hit: Hit) -> int:
        """Counts the tokens at the head of a request whose blocks are all stored; at most all tokens but one."""
        size, tokens = self._size, hit.tokens
        prefix: int | None = self._numbers.get((ROOT, (hit.extra_key,)))
        for first in range(0, len(tokens) - size, size):
            prefix = self._numbers.get((prefix or ROOT, tuple(tokens[first : first + size])))
            if prefix is None or not self._keys[prefix]:
                return first
        return (len(tokens) - 1) // size * size

    def contradiction(self, fact: Event | Hit | Room) -> str | None:
        """Says why the fact contradicts the earlier events; None if it does not."""
        if isinstance(fact, BlockStored):
            return self._wrong_store(fact)
        if isinstance(fact, BlockRemoved):
            return self._wrong_removal(fact)
        if isinstance(fact, Hit):
            known = self.known(fact)
            if known == fact.cached // self._size * self._size:
                return None
            under = f" under key {fact.extra_key}" if fact.extra_key is not None else ""
            hit = f"{counted(fact.cached, 'token')} of {list(fact.tokens)}{under}"
            return f"{hit} {'was' if fact.cached == 1 else 'were'} hit, but the events say {known}"
        if isinstance(fact, Room):
            stored = self._copies.total()
            if stored > fact.blocks:
                blocks = counted(stored, "block")
                return f"the events leave {blocks} stored, but by free_now only {fact.blocks} are not free"
            return None
        return None if isinstance(fact, AllBlocksCleared) else f"{fact!r} is no event"

    def _wrong_store(self, event: BlockStored) -> str | None:
        if event.block_size != self._size or len(event.tokens) != len(event.keys) * self._size:
            return (
                f"BlockStored of {counted(len(event.tokens), 'token')} in {counted(len(event.keys), 'block')} "
                f"of {event.block_size}; "
                f"a block has {self._size}"
            )
        if event.parent is not None and event.parent not in self._named:
            return f"BlockStored behind {event.parent!r}, which was never stored"
        if event.parent is not None and event.extra_key is not None:
            root = self._roots[self._named[event.parent]]
            if root != self._number(ROOT, (event.extra_key,)):
                return f"BlockStored under extra key {event.extra_key} behind {event.parent!r}, which has another"
        for key, prefix in self._prefixes(event):
            if self._copies[key] and self._named[key] != prefix:
                return f"BlockStored gives the key {key!r} to a second prefix"
        return None

    def _wrong_removal(self, event: BlockRemoved) -> str | None:
        """A listener with a set accepts a second removal of a key; a counting one does not."""
        for key, times in Counter(event.keys).items():
            if times > self._copies[key] and (self._counting or key not in self._named):
                return f"BlockRemoved of {key!r}, which is not stored"
        return None

    def _prefixes(self, event: BlockStored) -> Iterator[tuple[Hashable, int]]:
        """Yields the keys of an event, each with the number of its prefix."""
        known = None if event.parent is None else self._named.get(event.parent)
        prefix = self._number(ROOT, (event.extra_key,)) if known is None else known
        for i, key in enumerate(event.keys):
            prefix = self._number(prefix, tuple(event.tokens[i * self._size : (i + 1) * self._size]))
            yield key, prefix

    def _number(self, before: int, last: tuple[int | None, ...]) -> int:
        number = self._numbers.setdefault((before, last), len(self._numbers) + 1)
        self._roots.setdefault(number, self._roots.get(before, number))
        return number

    def _store(self, key: Hashable, prefix: int) -> None:
        if not self._copies[key]:
            self._named[key] = prefix
            self._keys[prefix] += 1
        self._copies[key] = self._copies[key] + 1 if self._counting else 1

    def _remove(self, key: Hashable) -> None:
        if not self._copies[key]:
            return
        self._copies[key] -= 1
        if not self._copies[key]:
            del self._copies[key]
            self._keys[self._named[key]] -= 1
