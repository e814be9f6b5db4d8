"""What a router can know of a worker: a lower and an upper bound on its cache, by the events that arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_index.index import Prefix
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event


class Message(NamedTuple):
    """An event of a worker, with the prefixes of the blocks that it stores or removes, in the order of its keys."""

    event: Event
    prefixes: tuple[Prefix, ...] = ()


class Heard:
    """The events of one worker that arrived, since its first one or the last `remove`.

    `sure` are the blocks that the index must know, `possible` those that it may know, both with their copies. They
    differ by rules 4 and 5: behind a gap nothing is sure. `last` is the number of the last event, None before any.
    """

    def __init__(self, block_size: int, traits: IndexTraits, last: int | None = None) -> None:
        self._size, self._traits = block_size, traits
        self.last = last
        self.gap = False
        self.sure: Counter[Prefix] = Counter()
        self.possible: Counter[Prefix] = Counter()

    def again(self, last: int | None = None) -> Heard:
        """The worker with nothing heard yet, or with what a snapshot behind event `last` will say."""
        return Heard(self._size, self._traits, last)

    def misses(self, number: int) -> bool:
        """Whether numbers are missing between the last event and this one."""
        return self.last is not None and number > self.last + 1

    def is_old(self, number: int) -> bool:
        """Whether the event, or one behind it, has arrived before."""
        return self.last is not None and number <= self.last

    def knows_parent(self, message: Message) -> bool:
        """Whether the parent of what the message stores may be known to the index, or it has none."""
        extra_key, tokens = message.prefixes[0]
        return len(tokens) == self._size or (extra_key, tokens[: -self._size]) in self.possible

    def arrives(self, number: int, message: Message) -> None:
        """Takes in an event that is not old."""
        # The first event of a worker may have any number, but an index may see that others came before it.
        if self.misses(number) or (self.last is None and number > 0):
            self.gap = True
            self.sure.clear()
        self.last = number
        self.take(message)

    def take(self, message: Message) -> None:
        """Takes in an event without a number, as of a snapshot."""
        if isinstance(message.event, BlockStored):
            # An index that does not know the parent of an event leaves out all of its blocks, also those that would
            # stand behind one that is stored already.
            stands = not self.gap and self._stands(message.prefixes[0])
            for prefix in message.prefixes:
                self._store(prefix, stands)
        elif isinstance(message.event, BlockRemoved):
            for prefix in message.prefixes:
                self._remove(prefix)
        else:
            self.sure.clear()
            self.possible.clear()
            self.gap = False

    def bounds(self, tokens: Sequence[int], extra_key: int | None) -> tuple[int, int]:
        """The fewest and the most blocks that the index may know at the head of a sequence."""
        size, whole = self._size, len(tokens) // self._size
        prefixes = [(extra_key, tuple(tokens[: n * size])) for n in range(1, whole + 1)]
        return _head(prefixes, self.sure), _head(prefixes, self.possible)

    def _stands(self, prefix: Prefix) -> bool:
        extra_key, tokens = prefix
        return len(tokens) == self._size or (extra_key, tokens[: -self._size]) in self.sure

    def _store(self, prefix: Prefix, surely: bool) -> None:
        counting = self._traits.event_listener == "counting"
        if surely:
            self.sure[prefix] = self.sure[prefix] + 1 if counting else 1
        self.possible[prefix] = self.possible[prefix] + 1 if counting else 1

    def _remove(self, prefix: Prefix) -> None:
        _one_fewer(self.sure, prefix)
        if not (self.gap and self._traits.waits_for_resync):
            _one_fewer(self.possible, prefix)
        if self._traits.orphans == "dropped" and prefix not in self.sure:
            extra_key, tokens = prefix
            for other in [p for p in self.sure if p[0] == extra_key and p[1][: len(tokens)] == tokens]:
                del self.sure[other]


def _one_fewer(copies: Counter[Prefix], prefix: Prefix) -> None:
    if prefix in copies:
        copies[prefix] -= 1
        if not copies[prefix]:
            del copies[prefix]


def _head(prefixes: Iterable[Prefix], stored: Container[Prefix]) -> int:
    count = 0
    for prefix in prefixes:
        if prefix not in stored:
            break
        count += 1
    return count
