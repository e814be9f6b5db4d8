"""Faults of kv_index: snapshots and lookups."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_index.indexed import Indexed, is_store
from kvlockstep.reference.kv_index.contract import Worker, WorkerSnapshot
from kvlockstep.reference.kv_index.index import KVIndex, WorkerCache
from kvlockstep.reference.kv_manager.contract import Event


@fault("index-snapshot-without-key", law="snapshot_exact", seen=("mutant",))
class SnapshotWithoutKey(KVIndex):
    """A snapshot leaves the extra keys out."""

    def snapshot(self) -> list[WorkerSnapshot]:
        return [
            row._replace(events=[e._replace(extra_key=None) if is_store(e) else e for e in row.events])
            for row in super().snapshot()
        ]


@fault("index-snapshot-of-parents", law="snapshot_exact", seen=("mutant",))
class SnapshotOfParents(KVIndex):
    """A snapshot stores the parents of its blocks also if they were removed."""

    def snapshot(self) -> list[WorkerSnapshot]:
        return [row._replace(events=[e for e in row.events if is_store(e)]) for row in super().snapshot()]


@fault("index-snapshot-without-number", law="duplicate_harmless", seen=("mutant",))
class SnapshotWithoutNumber(KVIndex):
    """A snapshot says of every worker that its first event is the next."""

    tells_gaps = False

    def snapshot(self) -> list[WorkerSnapshot]:
        return [row._replace(number=-1) for row in super().snapshot()]


@fault("index-answers-remembered", law="index_exact", seen=("mutant",))
class AnswersRemembered(KVIndex):
    """The answers of lookups are remembered, and only a store forgets them."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._answers: dict[tuple[tuple[int, ...], int | None], dict[Worker, int]] = {}

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if is_store(event):
            self._answers.clear()
        return super().apply(worker, number, event)

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        question = tuple(tokens), extra_key
        if question not in self._answers:
            self._answers[question] = super().known(tokens, extra_key)
        return dict(self._answers[question])


@fault("index-part-of-a-block", law="index_safe", seen=("mutant",))
class PartOfABlock(Indexed):
    """The last block of a lookup is counted also if it is not whole, by the block that begins like it."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            whole, asked = super().head(tokens, extra_key), tuple(tokens)
            rest = len(tokens) % self._size and whole == len(tokens) // self._size
            return whole + bool(
                rest and any(key == extra_key and stored[: len(asked)] == asked for key, stored in self.copies)
            )


@fault("index-equal-blocks-hang", law="termination", seen=("mutant",))
class EqualBlocksHang(KVIndex):
    """A lookup skips blocks that equal the one before them, and never gets past the last of them."""

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        size, i = self._size, 0
        while i + 2 * size <= len(tokens):
            if tokens[i : i + size] != tokens[i + size : i + 2 * size] or len(tokens) < 3 * size:
                i += size
        return super().known(tokens, extra_key)
