"""A worker of the machine: a small cache, and the events that it has sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvlockstep.models.core.op import require
from kvlockstep.properties.kv_index.heard import Message
from kvlockstep.reference.kv_index.index import Prefix
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored


class Worker:
    """A cache of blocks of `block_size` tokens. `sent` are its events in this life, by their numbers.

    `keys` names prefixes and may be shared with other workers. Keys are small numbers in the order of their first
    use, so those of two workers collide, and one of them is 0. Every second worker leaves out the extra key behind a
    parent. `announced` are the prefixes that had a store since the last clear: only behind them, and of them, can there
    be further events. `arrived` are the numbers of the events that reached the index. `lives` counts the workers of
    this name that have left.
    """

    def __init__(self, name: int, block_size: int, counting: bool, keys: dict[Prefix, int], lives: int = 0) -> None:
        self.name, self.lives = name, lives
        self._size, self._counting, self._keys = block_size, counting, keys
        self.copies: Counter[Prefix] = Counter()
        self.announced: set[Prefix] = set()
        self.sent: list[Message] = []
        self.arrived: set[int] = set()

    def blocks_of(self, tokens: Sequence[int], extra_key: int | None) -> list[Prefix]:
        """The prefixes of the whole blocks of a sequence."""
        ends = range(self._size, len(tokens) + 1, self._size)
        return [(extra_key, tuple(tokens[:end])) for end in ends]

    def store(self, blocks: Sequence[Prefix], first: int) -> Message:
        """Caches the blocks from `first` on, each once more. Raises NotEnabled where the worker cannot."""
        require(0 <= first < len(blocks) and (first == 0 or blocks[first - 1] in self.announced))
        new = blocks[first:]
        self.announced.update(new)
        for block in new:
            self.copies[block] = self.copies[block] + 1 if self._counting else 1
        return self._send(self._stored(new))

    def evict(self, blocks: Sequence[Prefix], n: int) -> Message:
        """Drops one copy of each of the last `n` blocks, children first. Raises NotEnabled where the worker cannot."""
        require(1 <= n <= len(blocks))
        gone = tuple(reversed(blocks[len(blocks) - n :]))
        # A set forgets twice what it forgets; who counts copies must not hear of one that is not there.
        require(all(block in (self.copies if self._counting else self.announced) for block in gone))
        for block in gone:
            self._drop(block)
        return self._send(self._removed(gone))

    def clear(self) -> Message:
        """Drops everything."""
        self.copies.clear()
        self.announced.clear()
        return self._send(Message(AllBlocksCleared()))

    def snapshot(self) -> list[Message]:
        """The events that make this cache of an empty one (rule 8)."""
        paths = dict.fromkeys(path for key, tokens in self.copies for path in self.blocks_of(tokens, key))
        messages = [
            self._stored([path])
            for path in sorted(paths, key=lambda path: len(path[1]))
            for _ in range(self.copies.get(path, 1))
        ]
        gone = tuple(path for path in paths if path not in self.copies)
        return [*messages, self._removed(gone)] if gone else messages

    def _drop(self, block: Prefix) -> None:
        self.copies[block] -= 1
        if self.copies[block] <= 0:
            del self.copies[block]

    def _send(self, message: Message) -> Message:
        self.sent.append(message)
        return message

    def _stored(self, blocks: Sequence[Prefix]) -> Message:
        extra_key, tokens = blocks[-1]
        start = len(blocks[0][1]) - self._size
        parent = self._key((extra_key, tokens[:start])) if start else None
        said = extra_key if parent is None or self.name % 2 == 0 else None
        keys = tuple(map(self._key, blocks))
        return Message(BlockStored(keys, parent, tokens[start:], self._size, said), tuple(blocks))

    def _removed(self, blocks: tuple[Prefix, ...]) -> Message:
        return Message(BlockRemoved(tuple(map(self._key, blocks))), blocks)

    def _key(self, block: Prefix) -> int:
        return self._keys.setdefault(block, len(self._keys))
