"""`record` for a kv_index: the index of a router behind a wrapper that writes events and lookups as a trace.

Workers become 0, 1, ... in the order of their first event, and keys become numbers. A lookup stands with its answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvlockstep.models.kv_index.scope import KVIndexScope
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event
from kvlockstep.runs.recording import Recording, op_line


class IndexRecorder(Recording):
    """Wrapper that a router uses as the index."""

    def __init__(self, index: Any, path: Path | str) -> None:
        super().__init__(index, path)
        self._index = index
        self._shared = read_traits(index, IndexTraits).shared_keys
        self._workers: dict[Hashable, int] = {}
        self._keys: dict[tuple[Hashable, Hashable], int] = {}
        # The header says how many tokens a block has, and the first store tells: what is before it has to wait.
        self._waiting: list[str] = []
        self._size = 0

    def apply(self, worker: Hashable, number: int, event: Event) -> Any:
        told = self._index.apply(worker, number, event)
        name = self._name(worker)
        if isinstance(event, BlockStored):
            keys, parent, tokens, extra_key = self._stored(worker, event)
            stored = {"keys": keys, "parent": parent, "tokens": tokens, "extra_key": extra_key}
            self._note("stored", worker=name, number=number, **stored)
        elif isinstance(event, BlockRemoved):
            self._note("removed", worker=name, number=number, keys=[self._key(worker, key) for key in event.keys])
        else:
            self._note("cleared", worker=name, number=number)
        return told

    def known(self, tokens: Sequence[int], extra_key: Any) -> Any:
        answer = self._index.known(tokens, extra_key)
        if tokens:
            self._note("lookup", self._text(answer), tokens=list(map(int, tokens)), extra_key=extra_key)
        return answer

    def remove(self, worker: Hashable) -> None:
        self._index.remove(worker)
        if worker in self._workers:
            self._note("leave", worker=self._workers[worker])

    def resync(self, worker: Hashable, number: int, events: Sequence[Event]) -> None:
        self._index.resync(worker, number, events)
        stored = [self._stored(worker, event) for event in events if isinstance(event, BlockStored)]
        removed = [self._key(worker, key) for event in events if isinstance(event, BlockRemoved) for key in event.keys]
        self._note("resynced", worker=self._name(worker), number=number, stored=stored, removed=removed)

    def close(self) -> None:
        self._know_size(1)
        super().close()

    def _stored(self, worker: Hashable, event: BlockStored) -> tuple[list[int], int | None, list[int], Any]:
        self._know_size(event.block_size)
        parent = None if event.parent is None else self._key(worker, event.parent)
        keys = [self._key(worker, key) for key in event.keys]
        return keys, parent, list(map(int, event.tokens)), event.extra_key

    def _key(self, worker: Hashable, key: Hashable) -> int:
        return self._keys.setdefault((None if self._shared else worker, key), len(self._keys))

    def _name(self, worker: Hashable) -> int:
        return self._workers.setdefault(worker, len(self._workers))

    def _text(self, answer: Mapping[Hashable, int]) -> str:
        known = sorted((self._name(worker), blocks) for worker, blocks in answer.items() if blocks)
        return ", ".join(f"worker {name}: {blocks}" for name, blocks in known) or "nobody"

    def _know_size(self, block_size: int) -> None:
        if not self._size:
            self._size = block_size
            self._begin("kv_index", KVIndexScope(block_size, 1, 1))
            self._write(self._waiting)

    def _note(self, operation: str, answer: str = "", **args: Any) -> None:
        line = op_line(operation, answer, **args)
        if self._size:
            self._write([line])
        else:
            self._waiting.append(line)
