"""Faults of radix_cache: caching running and finished requests."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.contract import NotLocked, RadixMatch
from kvlockstep.reference.radix_cache.tree import Handle


@fault("radix-free-zero", law="conservation", seen=("mini-sglang#142",))
class FreesFromZero(RadixCache):
    """A finishing request frees its duplicates from position 0, even slots that it matched."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        matched = [slot // self._size for slot in slots[: len(handle.prefix) : self._size]]
        already = super().cache_finished(handle, tokens, slots)
        if already > len(handle.prefix):
            self._free += matched
        return already


@fault("radix-dup-leak", law="conservation", seen=("sglang#13826",))
class KeepsDuplicates(RadixCache):
    """A finishing request does not free its duplicate slots."""

    def _cache(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        already, _, rest = super()._cache(handle, tokens, slots)
        return already, [], rest


@fault("radix-rest-leak", law="conservation", seen=("sglang#13826",))
class KeepsTheRest(RadixCache):
    """The slots of a last page that is not full are never freed."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already, duplicates, _ = self._cache(handle, tokens, slots)
        self._release(duplicates)
        self._tree.unlock(handle)
        return already


@fault("radix-finish-half", law="atomicity", seen=("seed 001",))
class FinishesBeforeItAsserts(RadixCache):
    """A finishing request is cached before its handle turns out not to be locked."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        if self._tree._entries.get(handle.prefix) is handle.entry and not handle.locks:
            self._tree.lock(handle)
            super().cache_finished(handle, tokens, slots)
            raise NotLocked("not locked")
        return super().cache_finished(handle, tokens, slots)


@fault("radix-no-remap", law="eviction_safety", seen=("mini-sglang#142",))
class UnfinishedKeepsItsSlots(RadixCache):
    """A running request keeps using the duplicate slots that were just freed."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        return match._replace(slots=list(slots[: match.length]))


@fault("radix-old-lock", law="refcount_exact", seen=("sglang#1858",))
class UnfinishedKeepsTheOldLock(RadixCache):
    """A running request that is cached keeps its old lock instead of locking what it cached."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        self._tree.unlock(match.handle)
        self._tree.lock(handle)
        match.handle.locks, handle.locks = 1, 0
        return match


@fault("radix-old-handle", law="no_double_free", seen=("mutant",))
class UnfinishedKeepsTheHandle(RadixCache):
    """Caching a running request leaves its old handle valid, so it can be unlocked again."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        handle.locks += 1
        return match


@fault("radix-trusts-handle", law="agreement", seen=("seed 001",))
class TrustsTheHandle(RadixCache):
    """A request is cached behind the prefix of its handle, even if its own tokens differ there."""

    def _cache(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        return super()._cache(handle, [*handle.prefix, *tokens[len(handle.prefix) :]], slots)


@fault("radix-matches-less", law="prefix_completeness", seen=("sglang#29349",))
class UnfinishedMatchesLess(RadixCache):
    """The match after caching a running request misses the last page that was just inserted."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        if match.length <= self._size:
            return match
        shorter = self.match_prefix(tokens[: match.length - self._size])
        self._tree.lock(shorter.handle)
        self._tree.unlock(match.handle)
        return shorter


@fault("radix-empty-asserts", law="error_contract", seen=("seed 001",))
class EmptyRequestAsserts(RadixCache):
    """An empty prompt raises AssertionError."""

    def match_request(self, tokens: Sequence[int]) -> RadixMatch:
        assert len(tokens) > 0, "no tokens"
        return super().match_request(tokens)


@fault("radix-finish-frees", law="eviction_safety", seen=("TensorRT-LLM#17926",))
class FinishFreesLocked(RadixCache):
    """A finishing request frees the last page of its prefix, even if others have it locked."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().cache_finished(handle, tokens, slots)
        entries, prefix = self._tree._entries, handle.prefix
        if prefix and entries[prefix].locks and not any(p[: -self._size] == prefix for p in entries):
            self._free.append(entries.pop(prefix).page)
        return already
