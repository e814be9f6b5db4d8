"""`record` for a kv_index: the index of a router behind a wrapper that writes events and lookups as a trace.

Workers become 0, 1, ... in the order of their first event, and keys become numbers. A lookup stands with its answer.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace, header_line
from kvlockstep.models.kv_index.scope import KVIndexScope
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.reference.kv_index.contract import IndexTraits
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event


class IndexRecorder:
    """Wrapper that a router uses as the index; `close`, or leave the `with` block, to end the trace.

    Raises UsageError if the file cannot be written.
    """

    def __init__(self, index: Any, path: Path | str) -> None:
        self._index = index
        self._shared = read_traits(index, IndexTraits).shared_keys
        self._workers: dict[Hashable, int] = {}
        self._keys: dict[tuple[Hashable, Hashable], int] = {}
        # The header says how many tokens a block has, and the first store tells: what is before it has to wait.
        self._waiting: list[str] = []
        self._size, self._written = 0, 0
        try:
            self._file = Path(path).open("w")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot write trace {path}: {error.strerror}; record to another path") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def apply(self, worker: Hashable, number: int, event: Event) -> Any:
        told = self._index.apply(worker, number, event)
        name = self._workers.setdefault(worker, len(self._workers))
        if isinstance(event, BlockStored):
            keys, parent, tokens, extra_key = self._stored(worker, event)
            stored = {"keys": keys, "parent": parent, "tokens": tokens, "extra_key": extra_key}
            self._write("stored", worker=name, number=number, **stored)
        elif isinstance(event, BlockRemoved):
            self._write("removed", worker=name, number=number, keys=[self._key(worker, key) for key in event.keys])
        else:
            self._write("cleared", worker=name, number=number)
        return told

    def known(self, tokens: Sequence[int], extra_key: Any) -> Any:
        answer = self._index.known(tokens, extra_key)
        if tokens:
            self._write("lookup", self._text(answer), tokens=list(map(int, tokens)), extra_key=extra_key)
        return answer

    def remove(self, worker: Hashable) -> None:
        self._index.remove(worker)
        if worker in self._workers:
            self._write("leave", worker=self._workers[worker])

    def resync(self, worker: Hashable, number: int, events: Sequence[Event]) -> None:
        self._index.resync(worker, number, events)
        name = self._workers.setdefault(worker, len(self._workers))
        stored = [self._stored(worker, event) for event in events if isinstance(event, BlockStored)]
        removed = [self._key(worker, key) for event in events if isinstance(event, BlockRemoved) for key in event.keys]
        self._write("resynced", worker=name, number=number, stored=stored, removed=removed)

    def close(self) -> None:
        """Writes the end of the trace."""
        if not self._file.closed:
            self._begin(1)
            self._file.write(json.dumps({"end": self._written}) + "\n")
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _stored(self, worker: Hashable, event: BlockStored) -> tuple[list[int], int | None, list[int], Any]:
        self._begin(event.block_size)
        parent = None if event.parent is None else self._key(worker, event.parent)
        keys = [self._key(worker, key) for key in event.keys]
        return keys, parent, list(map(int, event.tokens)), event.extra_key

    def _key(self, worker: Hashable, key: Hashable) -> int:
        return self._keys.setdefault((None if self._shared else worker, key), len(self._keys))

    def _text(self, answer: Mapping[Hashable, int]) -> str:
        known = sorted((self._workers[worker], blocks) for worker, blocks in answer.items() if blocks)
        return ", ".join(f"worker {name}: {blocks}" for name, blocks in known) or "nobody"

    def _begin(self, block_size: int) -> None:
        if not self._size:
            self._size = block_size
            header = header_line(Trace("kv_index", KVIndexScope(block_size, 1, 1), ()))
            self._file.write("\n".join([header, *self._waiting, ""]))

    def _write(self, operation: str, answer: str = "", **args: Any) -> None:
        line = json.dumps({"op": operation, "args": args, **({"answer": answer} if answer else {})})
        self._written += 1
        if self._size:
            self._file.write(line + "\n")
        else:
            self._waiting.append(line)
