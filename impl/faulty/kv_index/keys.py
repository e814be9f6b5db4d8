"""Faults of kv_index: what a block is, and what a key names."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.kv_index.indexed import Indexed, is_store
from kvlockstep.reference.kv_index.contract import Worker
from kvlockstep.reference.kv_index.index import KVIndex, Prefix, WorkerCache
from kvlockstep.reference.kv_manager.contract import Event


@fault("index-extra-key-dropped", law="index_exact", seen=("llm-d-kv-cache#411",))
class ExtraKeyDropped(KVIndex):
    """Extra keys are dropped on the way in, so that a prompt with one is never found."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(extra_key=None) if is_store(event) else event)


@fault("index-salt-not-hashed", law="index_exact", seen=("sglang#24568",))
class SaltNotHashed(KVIndex):
    """The salt is in no key, on neither side, so that two namespaces share their blocks."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(extra_key=None) if is_store(event) else event)

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        return super().known(tokens, None)


@fault("index-zero-is-no-key", law="index_exact", seen=("mutant",))
class ZeroIsNoKey(KVIndex):
    """The extra key 0 is taken for none."""

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[Worker, int]:
        return super().known(tokens, extra_key or None)


@fault("index-parent-key-zero", law="index_exact", seen=("mutant",))
class ParentKeyZero(KVIndex):
    """A parent with the key 0 is taken for none, so that its children are stored at the root."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        return super().apply(worker, number, event._replace(parent=event.parent or None) if is_store(event) else event)


@fault("index-block-without-parent", law="index_exact", seen=("mutant",))
class BlockWithoutParent(Indexed):
    """A block is known by its own tokens, whatever stands in front of it."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            size, whole = self._size, len(tokens) // self._size
            last = {(key, prefix[-size:]) for key, prefix in self.copies}
            blocks = [tuple(tokens[i * size : (i + 1) * size]) for i in range(whole)]
            return next((i for i, block in enumerate(blocks) if (extra_key, block) not in last), whole)


@fault("index-equal-blocks-once", law="index_exact", seen=("mutant",))
class EqualBlocksOnce(Indexed):
    """A block that is equal to the one before it is taken for that block."""

    class Cache(WorkerCache):
        def add(self, prefix: Prefix) -> None:
            _, tokens = prefix
            if len(tokens) == self._size or tokens[-self._size :] != tokens[-2 * self._size : -self._size]:
                super().add(prefix)


@fault("index-hole-in-the-middle", law="index_exact", seen=("mutant",))
class HoleInTheMiddle(Indexed):
    """A lookup counts all cached blocks of a sequence, also those behind one that is not."""

    class Cache(WorkerCache):
        def head(self, tokens: Sequence[int], extra_key: int | None) -> int:
            ends = range(self._size, len(tokens) + 1, self._size)
            return sum((extra_key, tuple(tokens[:end])) in self.copies for end in ends)


@fault("index-first-block-only", law="index_exact", seen=("mutant",))
class FirstBlockOnly(KVIndex):
    """Of a store of several blocks the first one is taken in."""

    def apply(self, worker: Worker, number: int, event: Event) -> bool:
        if is_store(event):
            event = event._replace(keys=event.keys[:1])
        return super().apply(worker, number, event)
