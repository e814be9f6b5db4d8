"""Faults of slot_prefix_cache: copy_kv."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import NotCached
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache


@fault("prefix-copy-short", law="content_equality", seen=("LMCache#4921",))
class CopyOneShort(SlotPrefixCache):
    """copy_kv leaves out the last position of the prefix."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        self._check_slot(target)
        last = self._kv[target][len(tokens) - 1] if 0 < len(tokens) <= self._positions else 0
        source = super().copy_kv(tokens, target)
        self._kv[target][len(tokens) - 1] = last
        return source


@fault("prefix-copy-keeps", law="content_equality", seen=("seed 000",))
class CopyKeepsTargetEntries(SlotPrefixCache):
    """The target slot of a copy keeps its old entries, so overwritten prefixes are still found."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        rows, used = dict(self._rows), dict(self._used)
        source = super().copy_kv(tokens, target)
        self._rows, self._used = rows, used
        return source


@fault("prefix-copy-unknown", law="agreement", seen=("seed 000",))
class CopiesUnknown(SlotPrefixCache):
    """Copying a prefix that is not cached silently does nothing."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        try:
            return super().copy_kv(tokens, target)
        except NotCached:
            return target


@fault("prefix-copy-whole", law="write_isolation", seen=("mlx-lm#1547",))
class CopiesWholeSlot(SlotPrefixCache):
    """copy_kv copies the whole source slot, not only the prefix."""

    def copy_kv(self, tokens: Sequence[int], target: int) -> int:
        source = super().copy_kv(tokens, target)
        self._kv[target][:] = self._kv[source]
        return source
