"""What arrived of a worker of a recording: its cache is not known, only its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from kvlockstep.models.core.op import require
from kvlockstep.properties.kv_index.heard import Heard, Message
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_index.index import Prefix
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event


class BlockNumbers:
    """Numbers blocks by their tokens, so that the prefix of a long prompt is a short tuple of numbers."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the whole blocks at the head of the sequence."""
        ends = range(self._size, len(tokens) + 1, self._size)
        blocks = (tuple(tokens[end - self._size : end]) for end in ends)
        return tuple(self._numbers.setdefault(block, len(self._numbers)) for block in blocks)


class RecordedWorker(Heard):
    """Bounds on the cache of a worker whose events name prefixes by keys only. Prefixes are those of `BlockNumbers`.

    A block behind a parent that was never announced stands under a prefix that no question asks for, until the parent
    is announced: then it may be found, as every block behind a parent that is unknown when it arrives.
    """

    def __init__(self, block_size: int, traits: IndexTraits, numbers: BlockNumbers, last: int | None = None) -> None:
        super().__init__(1, traits, last)
        self._whole, self._numbers = block_size, numbers
        self._named: dict[Hashable, Prefix] = {}
        self._strangers: dict[Hashable, Prefix] = {}

    def again(self, last: int | None = None) -> RecordedWorker:
        return RecordedWorker(self._whole, self._traits, self._numbers, last)

    def bounds(self, tokens: Sequence[int], extra_key: int | None) -> tuple[int, int]:
        return super().bounds(self._numbers.of(tokens), extra_key)

    def message(self, event: Event) -> Message:
        """The event with its prefixes. Raises NotEnabled if it stores a number of tokens that its keys cannot have."""
        if isinstance(event, BlockStored):
            require(event.keys and len(event.tokens) == len(event.keys) * self._whole)
            return Message(event, tuple(self._stored(event)))
        if isinstance(event, BlockRemoved):
            known = [key for key in event.keys if key in self._named]
            return Message(event, tuple(self._named[key] for key in known))
        return Message(event)

    def _stored(self, event: BlockStored) -> list[Prefix]:
        above = self._parent(event)
        blocks = self._numbers.of(event.tokens)
        prefixes = [(above[0], (*above[1], *blocks[: n + 1])) for n in range(len(blocks))]
        for key, prefix in zip(event.keys, prefixes, strict=True):
            self._named[key] = prefix
            if key in self._strangers:
                self._introduce(self._strangers.pop(key), prefix)
        return prefixes

    def _parent(self, event: BlockStored) -> Prefix:
        if event.parent is None:
            return event.extra_key, ()
        if event.parent not in self._named:
            # A number below 0 is no block's.
            unknown: Prefix = (event.extra_key, (-1 - len(self._strangers),))
            self._named[event.parent] = self._strangers[event.parent] = unknown
        return self._named[event.parent]

    def _introduce(self, stranger: Prefix, prefix: Prefix) -> None:
        """A parent that blocks were stored behind is announced: they stand behind it."""

        def moved(old: Prefix) -> Prefix:
            return (prefix[0], prefix[1] + old[1][1:]) if old[1][:1] == stranger[1] else old

        self._named = {key: moved(old) for key, old in self._named.items()}
        self.possible = Counter({moved(old): copies for old, copies in self.possible.items()})
