"""What a listener to events keeps: the prefixes that keys stand for, and the blocks that are stored in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from kvlockstep.reference.kv_manager.contract import BlockStored

ROOT = 0


class Prefixes:
    """Numbers prefixes: each stands for the prefix before it and what follows, the first for an extra key.

    `named` has the prefix of each key. It is kept after the removal of the key, since children may still be stored
    behind it.
    """

    def __init__(self) -> None:
        self.named: dict[Hashable, int] = {}
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._roots: dict[int, int] = {}
        self._adrift: set[int] = set()

    def root(self, extra_key: int | None) -> int:
        """The prefix of no token under an extra key."""
        return self.number(ROOT, (extra_key,))

    def number(self, before: int, last: Hashable) -> int:
        """The prefix that `last` follows `before` in."""
        number = self._numbers.setdefault((before, last), len(self._numbers) + 1)
        self._roots.setdefault(number, self._roots.get(before, number))
        return number

    def find(self, before: int, last: Hashable) -> int | None:
        """The number of a prefix, None if it has none yet."""
        return self._numbers.get((before, last))

    def before(self, event: BlockStored) -> int:
        """The prefix that the first block of an event stands behind. Behind an unknown key nobody can place a block."""
        if event.parent is None:
            return self.root(event.extra_key)
        if event.parent not in self.named:
            adrift = self.number(ROOT, ("behind", event.parent))
            self._adrift.add(adrift)
            return adrift
        return self.named[event.parent]

    @property
    def all_placed(self) -> bool:
        """True if no block was ever announced behind an unknown key."""
        return not self._adrift

    def placed(self, prefix: int) -> bool:
        """Tells whether the tokens of a prefix are known from its beginning on."""
        return self._roots[prefix] not in self._adrift

    def wrong_parent(self, event: BlockStored, where: str = "") -> str | None:
        """Says why nothing can be stored behind the parent of an event, and `where` it was never stored."""
        if event.parent is None:
            return None
        if event.parent not in self.named:
            return f"BlockStored behind {event.parent!r}, which was never stored{where}"
        if event.extra_key is not None and self._roots[self.named[event.parent]] != self.root(event.extra_key):
            return f"BlockStored under extra key {event.extra_key} behind {event.parent!r}, which has another"
        return None


class Stored:
    """What is stored in one place: the copies of each key, and how many keys each prefix has. A set has one copy.

    `ever` are all keys that were stored there, `lately` the prefixes that have gone since `forget` was called.
    """

    def __init__(self, counting: bool) -> None:
        self.ever: set[Hashable] = set()
        self.lately: set[int] = set()
        self.copies: Counter[Hashable] = Counter()
        self.keys: Counter[int] = Counter()
        self._counting = counting

    def store(self, key: Hashable, prefix: int) -> None:
        """Stores a block of the prefix under the key; a set has it once."""
        self.ever.add(key)
        if not self.copies[key]:
            self.keys[prefix] += 1
        self.copies[key] = self.copies[key] + 1 if self._counting else 1

    def remove(self, key: Hashable, prefix: int) -> None:
        """Removes one copy, if there is one."""
        if not self.copies[key]:
            return
        self.copies[key] -= 1
        if not self.copies[key]:
            del self.copies[key]
            self.keys[prefix] -= 1
            self.lately.add(prefix)

    def rename(self, key: Hashable, before: int, after: int) -> None:
        """The key stands for another prefix than it was said to, if it is stored."""
        if self.copies[key]:
            self.keys[before] -= 1
            self.keys[after] += 1

    def was_there(self, prefix: int) -> bool:
        """Tells whether a block of the prefix is stored, or was since `forget` was called."""
        return bool(self.keys[prefix]) or prefix in self.lately

    def forget(self) -> None:
        """What has gone so far went long ago."""
        self.lately.clear()

    def clear(self) -> None:
        """Removes everything."""
        self.lately.update(+self.keys)
        self.copies.clear()
        self.keys.clear()
