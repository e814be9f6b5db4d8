"""A listener to the events of a target, as a router has one: it knows which prefixes can be hit, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from kvlockstep.properties.kv_manager.prefixes import ROOT, Prefixes, Stored
from kvlockstep.properties.law import agree, counted
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event


class Hit(NamedTuple):
    """A request was admitted with `cached` tokens. With `loads` some of them may be loaded from a tier.

    A load may be from a `silent` tier, of which no event speaks. One that has `waited` for a load was admitted before:
    more may have been stored since.
    """

    tokens: Sequence[int]
    extra_key: int | None
    cached: int
    loads: bool = False
    silent: bool = False
    waited: bool = False


class Room(NamedTuple):
    """`blocks` blocks are not free: live requests hold them, or they can be hit. `said` is who says so.

    Of a `medium` other than the pool they are those that can be hit. With several pools, `pool` has its name.
    """

    blocks: int
    said: str = "free_now"
    medium: str | None = None
    pool: str | None = None


class Fetched(NamedTuple):
    """A load reads from a medium the block of a group that ends with these tokens."""

    tokens: Sequence[int]
    extra_key: int | None
    medium: str
    group: int = 0


Fact = Event | Hit | Room | Fetched


def hit_text(hit: Hit) -> str:
    """What was hit, in words."""
    under = f" under key {hit.extra_key}" if hit.extra_key is not None else ""
    tokens = f"{counted(hit.cached, 'token')} of {list(hit.tokens)}{under}"
    return f"{tokens} {'was' if hit.cached == 1 else 'were'} hit"


class Listener:
    """Tracks which blocks of `block_size` tokens can be hit, as a set, or `counting` the copies of each.

    What follows the prefix before, in the numbers of prefixes, are the tokens of a block.
    """

    def __init__(self, block_size: int, counting: bool) -> None:
        self._size = block_size
        self._counting = counting
        self._prefixes = Prefixes()
        self._pool = Stored(counting)
        self._media: dict[str | None, Stored] = {None: self._pool}
        # Prefixes that come back from a tier, each with the one before it that comes back as well.
        self._back: dict[int, int] = {}
        # What requests have just computed: the extra key, all tokens so far, and how many were there before.
        self._own: list[tuple[int | None, Sequence[int], int]] = []

    def apply(self, event: Event) -> None:
        """Applies the parts of an event that make sense."""
        named = self._prefixes.named
        if isinstance(event, BlockStored):
            medium = self._medium(event.medium)
            for key, prefix in self._blocks(event):
                if not medium.copies[key]:
                    named[key] = prefix
                medium.store(key, named[key])
        elif isinstance(event, BlockRemoved):
            medium = self._medium(event.medium)
            for key in event.keys:
                if key in named:
                    medium.remove(key, named[key])
        else:
            for medium in self._media.values():
                medium.clear()

    def known(self, hit: Hit, anywhere: bool = False) -> int:
        """Counts the tokens at the head of a request whose blocks are all stored; at most all tokens but one.

        They are stored in the pool, or `anywhere`.
        """
        size, tokens = self._size, hit.tokens
        media = list(self._media.values()) if anywhere else [self._pool]
        prefix: int | None = self._prefixes.find(ROOT, (hit.extra_key,))
        for first in range(0, len(tokens) - size, size):
            prefix = self._prefixes.find(prefix or ROOT, tuple(tokens[first : first + size]))
            if prefix is None or not any(medium.keys[prefix] for medium in media):
                return first
        return (len(tokens) - 1) // size * size

    def come_back(self, blocks: Sequence[tuple[int | None, Sequence[int]]]) -> None:
        """Blocks were loaded together, each named by its extra key and all tokens up to its end.

        From now on the pool announces each of them behind its parent.
        """
        chains = [self._chain(extra_key, tokens) for extra_key, tokens in blocks]
        loaded = {chain[-1] for chain in chains}
        self._back.update({chain[-1]: chain[-2] for chain in chains if chain[-2] in loaded})

    def computed(self, extra_key: int | None, tokens: Sequence[int], start: int, stop: int) -> None:
        """A request has computed the tokens from `start` up to `stop` itself.

        A block that it has filled is announced for its own sake, whatever comes back from a tier meanwhile.
        """
        if start // self._size < stop // self._size:
            self._own.append((extra_key, tokens[:stop], start))

    def forget(self, back: bool) -> None:
        """What was computed is announced by now, or it never is; so is what has come `back`.

        What has gone from a medium is there no more for loads.
        """
        for medium in self._media.values():
            medium.forget()
        self._own.clear()
        if back:
            self._back.clear()

    def contradiction(self, fact: Fact) -> str | None:
        """Says why the fact contradicts the earlier events; None if it does not."""
        if isinstance(fact, BlockStored):
            return self._wrong_store(fact)
        if isinstance(fact, BlockRemoved):
            return self._wrong_removal(fact)
        if isinstance(fact, Hit):
            return self._wrong_hit(fact)
        if isinstance(fact, Room):
            return self._wrong_room(fact)
        if isinstance(fact, Fetched):
            medium = self._media.get(fact.medium)
            if medium is None or medium.was_there(self._chain(fact.extra_key, fact.tokens)[-1]):
                return None  # a tier that is never spoken of is none of the listener's business
            return f"the block behind {list(fact.tokens)} is loaded from {fact.medium}, where no event says that it is"
        return None if isinstance(fact, AllBlocksCleared) else f"{fact!r} is no event"

    def _wrong_hit(self, fact: Hit) -> str | None:
        known, cached = self.known(fact), fact.cached // self._size * self._size
        least = 0 if fact.waited else known
        most = self._longest(fact)
        if least <= cached <= most:
            return None
        said = f"{known} to {most}" if most > known else str(known)
        return f"{hit_text(fact)}, but the events say {said}"

    def _longest(self, hit: Hit) -> int:
        """The longest hit that there may be."""
        return len(hit.tokens) if hit.silent else self.known(hit, anywhere=hit.loads)

    def _wrong_room(self, fact: Room) -> str | None:
        medium = self._media.get(fact.medium)
        stored = medium.copies.total() if medium is not None else 0
        if stored <= fact.blocks:
            return None
        left = f"the events leave {counted(stored, 'block')} stored"
        if fact.medium is not None:
            return f"{left} in {fact.medium}, but by {fact.said} only {fact.blocks} can be hit there"
        return f"{left}, but by {fact.said} only {fact.blocks} {agree(fact.blocks, 'are')} not free"

    def _wrong_store(self, event: BlockStored) -> str | None:
        if event.block_size != self._size or len(event.tokens) != len(event.keys) * self._size:
            return (
                f"BlockStored of {counted(len(event.tokens), 'token')} in {counted(len(event.keys), 'block')} "
                f"of {event.block_size}; "
                f"a block has {self._size}"
            )
        wrong = self._prefixes.wrong_parent(event)
        if wrong is not None:
            return wrong
        before: set[int] = set()
        told: dict[Hashable, int] = {}
        for key, prefix in self._blocks(event):
            stored = any(medium.copies[key] for medium in self._media.values())
            if told.setdefault(key, self._prefixes.named[key] if stored else prefix) != prefix:
                return f"BlockStored gives the key {key!r} to a second prefix"
            parent = self._back.get(prefix) if event.medium is None else None
            early = parent is not None and parent not in before and not self._pool.keys[parent]
            if early and not self._was_computed(prefix):
                return f"BlockStored of {key!r}, which comes back from a tier before its parent does"
            before.add(prefix)
        return None

    def _wrong_removal(self, event: BlockRemoved) -> str | None:
        """A listener with a set accepts a second removal of a key; a counting one does not."""
        medium = self._media.get(event.medium, self._pool)
        for key, times in Counter(event.keys).items():
            if times > medium.copies[key] and (self._counting or key not in self._prefixes.named):
                return f"BlockRemoved of {key!r}, which is not stored"
        return None

    def _was_computed(self, prefix: int) -> bool:
        """Tells whether a request has just computed the last block of a prefix."""
        return any(prefix in self._chain(key, tokens)[start // self._size + 1 :] for key, tokens, start in self._own)

    def _blocks(self, event: BlockStored) -> Iterator[tuple[Hashable, int]]:
        """Yields the keys of an event, each with the number of its prefix."""
        prefix = self._prefixes.before(event)
        for i, key in enumerate(event.keys):
            prefix = self._prefixes.number(prefix, tuple(event.tokens[i * self._size : (i + 1) * self._size]))
            yield key, prefix

    def _chain(self, extra_key: int | None, tokens: Sequence[int]) -> list[int]:
        """The prefixes of a sequence, from that of no block up to that of all its full blocks."""
        chain = [self._prefixes.root(extra_key)]
        for first in range(0, len(tokens) - self._size + 1, self._size):
            chain.append(self._prefixes.number(chain[-1], tuple(tokens[first : first + self._size])))
        return chain

    def _medium(self, name: str | None) -> Stored:
        return self._media.setdefault(name, Stored(self._counting))
