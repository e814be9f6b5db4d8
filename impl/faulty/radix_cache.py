"""Faults of radix_cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import InvalidArgument, NotHeld, OutOfSlots
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.contract import NotLocked, RadixMatch, RadixSizes, StaleHandle
from kvlockstep.reference.radix_cache.tree import Entry, Handle, Prefix, RadixTree


class Runs(RadixTree):
    """A tree that knows which pages were cached at once and not split since, as a compressed one does."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._run_of: dict[Entry, object] = {}

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        prefix = sequence[: self.cached_length(sequence)]
        upper = self._cut_by(prefix)
        used = [entry.used for entry in upper]
        found = super().match(sequence)
        if upper:
            self.split(prefix, upper, used)
        return found

    def insert(self, sequence: Prefix, pages: Iterable[int]) -> None:
        prefix = sequence[: self.cached_length(sequence)]
        upper = self._cut_by(prefix)
        used = [entry.used for entry in upper]
        run = object()
        super().insert(sequence, pages)
        for p in self._path(sequence):
            self._run_of.setdefault(self._entries[p], run)
        if upper and len(self._path(sequence)) * self._size > len(prefix):
            self.split(prefix, upper, used)

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        """The run of which `upper`, last used at `used`, is the first part is cut at the end of `prefix`."""
        run = object()
        self._run_of.update(dict.fromkeys(upper, run))

    def _cut_by(self, prefix: Prefix) -> list[Entry]:
        """The pages before the end of `prefix` of a run that goes on behind it."""
        if not prefix:
            return []
        run = self._run_of[self._entries[prefix]]
        goes_on = any(p[: -self._size] == prefix and self._run_of[e] is run for p, e in self._entries.items())
        return [e for p in self._path(prefix) if self._run_of[e := self._entries[p]] is run] if goes_on else []


class SplitLosesLocks(Runs):
    """The upper part of a split run starts without locks."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry in upper:
            entry.locks = 0


class SplitDoublesLocks(Runs):
    """The upper part of a split run has the locks of its own and of the lower part."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry in upper:
            entry.locks *= 2


class SplitDropsTail(Runs):
    """The lower part of a split run is no longer in the tree."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        run = self._run_of
        lost = [
            p for p in self._entries if len(p) > len(prefix) and p[: len(prefix)] == prefix and p in self._below(prefix)
        ]
        for p in lost:
            run.pop(self._entries.pop(p))

    def _below(self, prefix: Prefix) -> list[Prefix]:
        return [p for p in self._entries if p[: len(prefix)] == prefix and not self._entries[p].locks]


class SplitKeepsAge(Runs):
    """The part of a run in which a match or an insert ends keeps its age."""

    def split(self, prefix: Prefix, upper: list[Entry], used: list[int]) -> None:
        super().split(prefix, upper, used)
        for entry, age in zip(upper, used, strict=True):
            entry.used = age


class MatchKeepsAge(RadixTree):
    """A match does not count as a use."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        ages = {prefix: entry.used for prefix, entry in self._entries.items()}
        found = super().match(sequence)
        for prefix, age in ages.items():
            self._entries[prefix].used = age
        return found


class LocksFromTheParent(RadixTree):
    """The lock walk goes on to the parent before it has locked anything; so does the unlock walk."""

    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        self._undo(handle, 1)

    def unlock(self, handle: Handle) -> None:
        self.check_locked(handle)
        self._undo(handle, -1)
        super().unlock(handle)

    def _undo(self, handle: Handle, locks: int) -> None:
        if handle.prefix:
            self._entries[handle.prefix].locks -= locks


class EvictsLocked(RadixTree):
    """Eviction does not look at locks."""

    def evict(self, count: int) -> list[int]:
        locks = {prefix: entry.locks for prefix, entry in self._entries.items()}
        for entry in self._entries.values():
            entry.locks = 0
        evicted = super().evict(count)
        for prefix, entry in self._entries.items():
            entry.locks = locks[prefix]
        return evicted


class EvictsAnywhere(RadixTree):
    """Evicts the least recently used page though others extend it."""

    def evict(self, count: int) -> list[int]:
        evicted = []
        for _ in range(count):
            free = [p for p, entry in self._entries.items() if not entry.locks]
            evicted.append(self._entries.pop(min(free, key=lambda p: (self._entries[p].used, len(p)))).page)
        return evicted


class EvictsNewest(RadixTree):
    """Evicts the most recently used leaf."""

    def evict(self, count: int) -> list[int]:
        for entry in self._entries.values():
            entry.used = -entry.used
        evicted = super().evict(count)
        for entry in self._entries.values():
            entry.used = -entry.used
        return evicted


class EvictsOneFewer(RadixTree):
    """Stops one page early when it has to evict several."""

    def evict(self, count: int) -> list[int]:
        return super().evict(count - (count > 1))


class EvictsWholeRuns(Runs):
    """Evicts what was cached at once as a whole, more than asked for."""

    def evict(self, count: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < count:
            inner = {p[: -self._size] for p in self._entries}
            leaves = [p for p, e in self._entries.items() if not e.locks and p not in inner]
            leaf = min(leaves, key=lambda p: self._entries[p].used)
            run = self._run_of[self._entries[leaf]]
            for prefix in reversed(self._path(leaf)):
                if self._run_of[self._entries[prefix]] is run and not self._entries[prefix].locks:
                    evicted.append(self._entries.pop(prefix).page)
        return evicted


class UnlocksTooOften(RadixTree):
    """An unlock without a lock is accepted and does nothing."""

    def unlock(self, handle: Handle) -> None:
        self.check(handle)
        if handle.locks:
            super().unlock(handle)

    def check_locked(self, handle: Handle) -> None:
        self.check(handle)


class UnlocksBeforeItAsserts(RadixTree):
    """An unlock without a lock is noticed when the counts on the path have been changed."""

    def unlock(self, handle: Handle) -> None:
        self.check(handle)
        if not handle.locks:
            for prefix in self._path(handle.prefix):
                self._entries[prefix].locks -= 1
        super().unlock(handle)


class UnlockKeepsAge(RadixTree):
    """What was locked is as old as when it was matched."""

    def unlock(self, handle: Handle) -> None:
        ages = {prefix: self._entries[prefix].used for prefix in self._path(handle.prefix) if prefix in self._entries}
        super().unlock(handle)
        for prefix, age in ages.items():
            self._entries[prefix].used = age


class HandleByPrefix(RadixTree):
    """A handle is good again when its prefix is."""

    def check(self, handle: Handle) -> None:
        if handle.prefix and handle.prefix not in self._entries:
            raise StaleHandle("evicted")


class LocksWhatIsLeft(RadixTree):
    """A handle whose end was evicted locks what is left of its path; one of before a reset as well."""

    def check(self, handle: Handle) -> None:
        return

    def lock(self, handle: Handle) -> None:
        handle.prefix = handle.prefix[: self.cached_length(handle.prefix)]
        super().lock(handle)

    def unlock(self, handle: Handle) -> None:
        handle.prefix = handle.prefix[: self.cached_length(handle.prefix)]
        super().unlock(handle)


class SiblingsByFirstToken(RadixTree):
    """Children are known by the first token of their page; a second one takes the place of the first."""

    def insert(self, sequence: Prefix, pages: Iterable[int]) -> None:
        known = set(self._entries)
        super().insert(sequence, pages)
        for new in [p for p in self._entries if p not in known]:
            start = new[: 1 - self._size] if self._size > 1 else new
            for other in [p for p in known if p[: len(start)] == start and p[: len(new)] != new]:
                if other in self._entries and not self._entries[other].locks:
                    del self._entries[other]


class LeavesCountOnly(RadixTree):
    """Only leaves count as evictable."""

    def counts(self) -> tuple[int, int]:
        inner = {p[: -self._size] for p in self._entries}
        evictable = sum(not e.locks and p not in inner for p, e in self._entries.items())
        return evictable, len(self._entries) - evictable


class MatchesOneLess(RadixTree):
    """The last page of a match is left out."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        return super().match(sequence[: max(0, self.cached_length(sequence) - self._size)])


def with_tree(tree: type[RadixTree]) -> type[RadixCache]:
    """The reference over a faulty tree."""
    return type(tree.__name__, (RadixCache,), {"tree_type": tree, "__doc__": tree.__doc__})


class KeepsTokens(RadixCache):
    """What is inserted stays in the caller's array."""

    def reset(self) -> None:
        self._kept: list[tuple[Prefix, int, Sequence[int]]] = []
        super().reset()

    @property
    def _tree(self) -> RadixTree:
        entries = self._real._entries
        for i, (prefix, start, tokens) in enumerate(self._kept):
            now = prefix[:start] + tuple(tokens[start : len(prefix)])
            if prefix in entries and now != prefix:
                entries[now] = entries.pop(prefix)
                self._kept[i] = (now, start, tokens)
        return self._real

    @_tree.setter
    def _tree(self, tree: RadixTree) -> None:
        self._real = tree

    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().insert_prefix(tokens, slots)
        for end in range(already + self._size, len(tokens) + 1, self._size):
            self._kept.append((tuple(tokens[:end]), already, tokens))
        return already


class KeepsSlots(RadixCache):
    """The slots of what is inserted stay in the caller's array."""

    def reset(self) -> None:
        self._kept: dict[int, tuple[Sequence[int], int]] = {}
        super().reset()

    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().insert_prefix(tokens, slots)
        for start in range(already, len(tokens) // self._size * self._size, self._size):
            self._kept[slots[start] // self._size] = (slots, start)
        return already

    def entries(self) -> dict[Prefix, tuple[tuple[int, ...], int]]:
        shown = {}
        for prefix, (page, locks) in self._tree.entries().items():
            slots, start = self._kept.get(page, (self._slots([page]), 0))
            shown[prefix] = (tuple(slots[start : start + self._size]), locks)
        return shown


class FreesFromZero(RadixCache):
    """A finished request frees its duplicates from position 0 on, those that it had matched as well."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        matched = [slot // self._size for slot in slots[: len(handle.prefix) : self._size]]
        already = super().cache_finished(handle, tokens, slots)
        if already > len(handle.prefix):
            self._free += matched
        return already


class KeepsDuplicates(RadixCache):
    """A finished request does not free its duplicates."""

    def _cache(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        already, _, rest = super()._cache(handle, tokens, slots)
        return already, [], rest


class KeepsTheRest(RadixCache):
    """A last page that is not full is never freed."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already, duplicates, _ = self._cache(handle, tokens, slots)
        self._release(duplicates)
        self._tree.unlock(handle)
        return already


class FinishesBeforeItAsserts(RadixCache):
    """A request is cached before its handle turns out not to be locked."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        if self._tree._entries.get(handle.prefix) is handle.entry and not handle.locks:
            self._tree.lock(handle)
            super().cache_finished(handle, tokens, slots)
            raise NotLocked("not locked")
        return super().cache_finished(handle, tokens, slots)


class UnfinishedKeepsItsSlots(RadixCache):
    """A running request goes on in the slots of its duplicates, which have been freed."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        return match._replace(slots=list(slots[: match.length]))


class UnfinishedKeepsTheOldLock(RadixCache):
    """What a running request has cached is not locked, only what it had matched."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        self._tree.unlock(match.handle)
        self._tree.lock(handle)
        match.handle.locks, handle.locks = 1, 0
        return match


class CachesPartOfAPage(RadixCache):
    """The last page of a sequence is cached though it is not full."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        super()._insert(sequence, pages)
        whole = len(sequence) // self._size * self._size
        if whole < len(sequence) and pages:
            self._tree._entries[sequence] = Entry(pages[-1], self._tree._clock)
            self._held.discard(pages[-1])


class UnfinishedKeepsTheHandle(RadixCache):
    """When a running request has been cached its old handle can still be unlocked."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        handle.locks += 1
        return match


class TrustsTheHandle(RadixCache):
    """A request is cached behind what its handle names, whatever its tokens there are."""

    def _cache(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        return super()._cache(handle, [*handle.prefix, *tokens[len(handle.prefix) :]], slots)


class AnswersOneArray(RadixCache):
    """Every allocation is answered in the same array."""

    def reset(self) -> None:
        self._answer: list[int] = []
        super().reset()

    def allocate(self, n: int) -> list[int]:
        self._answer[:] = super().allocate(n)
        return self._answer


class ReversesPages(RadixCache):
    """The pages of a sequence are cached in the reverse order."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        whole = (len(sequence) - self._tree.cached_length(sequence)) // self._size
        super()._insert(sequence, pages[:whole][::-1] + pages[whole:])


class MatchesTheLastToken(RadixCache):
    """A request whose whole prompt is cached has nothing left to compute."""

    def match_request(self, tokens: Sequence[int]) -> RadixMatch:
        if not len(tokens):
            raise InvalidArgument("no tokens")
        return self.match_prefix(tokens)


class PagesAreSlots(RadixCache):
    """An allocation gives as many slots as tokens, whatever the page."""

    def allocate(self, n: int) -> list[int]:
        return super().allocate(n)[:n]


class AcceptsPageTwice(RadixCache):
    """Slots that are named twice are inserted twice."""

    def _held_pages(self, slots: Sequence[int]) -> list[int]:
        pages = [slot // self._size for slot in slots[:: self._size]]
        try:
            return super()._held_pages(slots)
        except NotHeld:
            if self._held.issuperset(pages):
                return pages
            raise


class AcceptsForeignSlots(RadixCache):
    """Slots that the caller does not hold can be freed and inserted."""

    def _held_pages(self, slots: Sequence[int]) -> list[int]:
        try:
            return super()._held_pages(slots)
        except NotHeld:
            return [slot // self._size for slot in slots[:: self._size]]


class ShowsSplits(RadixCache):
    """A match leaves its mark in the printed tree."""

    def reset(self) -> None:
        super().reset()
        self._splits: set[Prefix] = set()

    def match_prefix(self, tokens: Sequence[int]) -> RadixMatch:
        match = super().match_prefix(tokens)
        if any(p[: match.length] == match.handle.prefix and len(p) > match.length for p in self._tree.entries()):
            self._splits.add(match.handle.prefix)
        return match

    def render(self) -> str:
        return "\n".join([super().render(), *(f"split at {list(prefix)}" for prefix in sorted(self._splits))])


class CountsTokens(RadixCache):
    """The evictable size is counted in tokens given, not in pages cached."""

    def reset(self) -> None:
        super().reset()
        self._drift = 0

    def insert_prefix(self, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().insert_prefix(tokens, slots)
        self._drift += len(tokens) % self._size if len(tokens) > already else 0
        return already

    def sizes(self) -> RadixSizes:
        sizes = super().sizes()
        return sizes._replace(evictable=sizes.evictable + self._drift)


class AllocatesFreeOnly(RadixCache):
    """An allocation that needs an eviction is refused."""

    def allocate(self, n: int) -> list[int]:
        if n > len(self._free) * self._size:
            raise OutOfSlots("no free page")
        return super().allocate(n)


class EvictsBeforeItRefuses(RadixCache):
    """An allocation that cannot succeed has evicted all there was when it is refused."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots:
            evictable, _ = self._tree.counts()
            super().evict(evictable * self._size)
            raise


class EvictAsserts(RadixCache):
    """Evicting more than is evictable fails an assertion."""

    def evict(self, n: int) -> list[int]:
        evictable, _ = self._tree.counts()
        assert n <= evictable * self._size, "cannot evict so much"
        return super().evict(n)


class EvictLoops(RadixCache):
    """Eviction goes on until enough is free, which with locked pages never comes."""

    def evict(self, n: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < n:
            evictable, _ = self._tree.counts()
            evicted += super().evict(min(self._size, evictable * self._size))
        return evicted if n > 0 else super().evict(n)


class FreesInFront(RadixCache):
    """What is freed last is taken first."""

    def _release(self, pages: list[int]) -> None:
        self._held.difference_update(pages)
        self._free[:0] = pages


class ResetKeepsHeld(RadixCache):
    """After a reset the slots that the caller held are nobody's."""

    def reset(self) -> None:
        held: set[int] = getattr(self, "_held", set())
        super().reset()
        self._free = [page for page in self._free if page not in held]


class ResetKeepsTree(RadixCache):
    """A reset does nothing to the tree."""

    def reset(self) -> None:
        tree: Any = getattr(self, "_tree", None)
        super().reset()
        if tree is not None:
            self._tree = tree
            cached = {page for page, _ in tree.entries().values()}
            self._free = [page for page in self._free if page not in cached]


class LocksTheRun(Runs):
    """A lock covers the whole run that its prefix ends in; after a split the unlock covers less."""

    def lock(self, handle: Handle) -> None:
        super().lock(handle)
        for entry in self._rest_of_run(handle.prefix):
            entry.locks += 1

    def unlock(self, handle: Handle) -> None:
        super().unlock(handle)
        for entry in self._rest_of_run(handle.prefix):
            entry.locks -= 1

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        return RadixTree.match(self, sequence)

    def _rest_of_run(self, prefix: Prefix) -> list[Entry]:
        run = self._run_of.get(self._entries[prefix]) if prefix else None
        longer = [e for p, e in self._entries.items() if p[: len(prefix)] == prefix and len(p) > len(prefix)]
        return [entry for entry in longer if run is not None and self._run_of[entry] is run]


class LocksWhatIsThere(RadixTree):
    """A lock skips what of its path was evicted; what is back when it is unlocked loses a lock that it never had."""

    def check(self, handle: Handle) -> None:
        return

    def lock(self, handle: Handle) -> None:
        handle.locks += 1
        for prefix in self._path(handle.prefix):
            if prefix in self._entries:
                self._entries[prefix].locks += 1

    def unlock(self, handle: Handle) -> None:
        self.check_locked(handle)
        handle.locks -= 1
        for prefix in self._path(handle.prefix):
            if prefix in self._entries:
                self._entries[prefix].locks -= 1
        self._use(handle.prefix[: self.cached_length(handle.prefix)])


class CountsLocked(RadixTree):
    """Locked leaves that an eviction passes over count as evicted."""

    def evict(self, count: int) -> list[int]:
        inner = {p[: -self._size] for p in self._entries}
        locked = sum(e.locks > 0 for p, e in self._entries.items() if p not in inner)
        return super().evict(max(0, count - locked))


class EmptyNode(RadixTree):
    """A match of less than a page ends in an empty node of its own, which nobody finds again."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        found = super().match(sequence)
        cut = 0 < len(sequence) < self._size and any(p[: len(sequence)] == sequence for p in self._entries)
        return (Handle((), Entry(-1, self._clock)), []) if cut else found


class EmptyKey(RadixTree):
    """What is shorter than a page is looked up by an empty key."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        if 0 < len(sequence) < self._size:
            raise KeyError(())
        return super().match(sequence)


class AnotherRequestsTokens(RadixTree):
    """The walk goes by the tokens of the request before from the second page on."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._last: Prefix = ()

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        last, self._last = self._last, sequence
        size = self._size
        mixed = sequence[:size] + last[size : len(sequence)]
        return super().match(mixed if len(mixed) == len(sequence) else sequence)


class StaleInOrder(RadixCache):
    """What an allocation has evicted stays in the list that evictions go by."""

    def reset(self) -> None:
        super().reset()
        self._stale: list[int] = []

    def allocate(self, n: int) -> list[int]:
        order = self._tree.eviction_order()
        slots = super().allocate(n)
        self._stale += [page for page in order if page not in self._tree.eviction_order()][-1:]
        return slots

    def eviction_order(self) -> list[int]:
        return self._slots(self._stale[:1]) + super().eviction_order()


class KeepsWhatItCached(RadixCache):
    """A page stays the caller's when it is cached, who may cache it again with what it holds next."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        held = set(self._held)
        super()._insert(sequence, pages)
        self._held |= held & set(pages[-1:])


class UnfinishedMatchesLess(RadixCache):
    """Of what a running request has cached the last page is not matched again: it goes on in a page of the tree."""

    def cache_unfinished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> RadixMatch:
        match = super().cache_unfinished(handle, tokens, slots)
        if match.length <= self._size:
            return match
        shorter = self.match_prefix(tokens[: match.length - self._size])
        self._tree.lock(shorter.handle)
        self._tree.unlock(match.handle)
        return shorter


class AllocatesNegative(RadixCache):
    """A negative number of tokens is cut off the end of the free list."""

    def allocate(self, n: int) -> list[int]:
        if n >= 0 or not self._free:
            return super().allocate(n)
        pages, self._free = self._free[:n], self._free[n:]
        self._held.update(pages)
        return self._slots(pages)


class EvictsNegative(RadixCache):
    """Evicting a negative number of tokens fails on the empty list of what was evicted."""

    def evict(self, n: int) -> list[int]:
        if n < 0:
            raise RuntimeError("nothing to join")
        return super().evict(n)


class AllocatesWhatThereIs(RadixCache):
    """With less free than asked for the answer is shorter."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots:
            return super().allocate(len(self._free) * self._size)


class AllocateAsserts(RadixCache):
    """An allocation that eviction cannot serve fails an assertion."""

    def allocate(self, n: int) -> list[int]:
        try:
            return super().allocate(n)
        except OutOfSlots as error:
            raise AssertionError("cannot evict enough") from error


class EmptyRequestAsserts(RadixCache):
    """A prompt of no tokens fails an assertion."""

    def match_request(self, tokens: Sequence[int]) -> RadixMatch:
        assert len(tokens) > 0, "no tokens"
        return super().match_request(tokens)


class ResetIsMissing(RadixCache):
    """reset is left for later."""

    def reset(self) -> None:
        if hasattr(self, "_held"):
            raise NotImplementedError("reset")
        super().reset()


class RenderIsCut(RadixCache):
    """A printed line is cut at thirty characters."""

    def render(self) -> str:
        first, *lines = super().render().split("\n")
        return "\n".join([first, *[line[:30] for line in lines]])


class ResetKeepsCached(RadixCache):
    """A reset takes back what is held and leaves what is cached, if nothing of it is locked."""

    def reset(self) -> None:
        tree = getattr(self, "_tree", None)
        super().reset()
        if tree is not None and not tree.counts()[1]:
            self._tree._entries = tree._entries
            self._free = [page for page in self._free if page not in tree.eviction_order()]


class InsertDropsParent(RadixCache):
    """An insert that extends a page replaces it, if it has no lock: the page is free, its extensions stay."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        known = sequence[: self._tree.cached_length(sequence)]
        super()._insert(sequence, pages)
        parent = self._tree._entries.get(known)
        if parent is not None and not parent.locks and len(sequence) >= len(known) + self._size:
            self._free.append(self._tree._entries.pop(known).page)


class FinishFreesLocked(RadixCache):
    """A request that ends frees the last page of its prefix, whoever else has locked it."""

    def cache_finished(self, handle: Handle, tokens: Sequence[int], slots: Sequence[int]) -> int:
        already = super().cache_finished(handle, tokens, slots)
        entries, prefix = self._tree._entries, handle.prefix
        if prefix and entries[prefix].locks and not any(p[: -self._size] == prefix for p in entries):
            self._free.append(entries.pop(prefix).page)
        return already


FAULTS = faults_of(
    "radix_cache",
    ("radix-split-unlocks", with_tree(SplitLosesLocks), "a split loses locks", ("mutant",), "refcount_exact"),
    ("radix-split-doubles", with_tree(SplitDoublesLocks), "a split doubles locks", ("mutant",), "refcount_exact"),
    ("radix-split-drops", with_tree(SplitDropsTail), "a split drops the tail", ("mlc-llm#2798",), "conservation"),
    ("radix-split-age", with_tree(SplitKeepsAge), "a part hit keeps its age", ("seed 001",), "eviction_order"),
    ("radix-match-age", with_tree(MatchKeepsAge), "a match does not refresh", ("mutant",), "eviction_order"),
    (
        "radix-lock-parent",
        with_tree(LocksFromTheParent),
        "the leaf is not locked",
        ("mini-sglang#52",),
        "refcount_exact",
    ),
    ("radix-evict-locked", with_tree(EvictsLocked), "locks are ignored", ("mini-sglang#52",), "eviction_safety"),
    ("radix-evict-inner", with_tree(EvictsAnywhere), "parents go first", ("Megatron-LM#5822",), "structure"),
    ("radix-evict-newest", with_tree(EvictsNewest), "the wrong end", ("mutant",), "eviction_order"),
    ("radix-evict-early", with_tree(EvictsOneFewer), "stops early", ("xllm#55",), "conservation"),
    ("radix-evict-late", with_tree(EvictsWholeRuns), "evicts more than asked", ("seed 001",), "conservation"),
    ("radix-unlock-twice", with_tree(UnlocksTooOften), "a double unlock", ("LMCache#2559",), "no_double_free"),
    ("radix-unlock-half", with_tree(UnlocksBeforeItAsserts), "counts go below 0", ("seed 001",), "atomicity"),
    ("radix-unlock-age", with_tree(UnlockKeepsAge), "an unlock is no use", ("seed 001",), "eviction_order"),
    ("radix-handle-prefix", with_tree(HandleByPrefix), "a stale handle revives", ("seed 001",), "no_double_free"),
    ("radix-handle-left", with_tree(LocksWhatIsLeft), "a stale handle is accepted", ("seed 001",), "no_double_free"),
    ("radix-first-token", with_tree(SiblingsByFirstToken), "siblings collide", ("seed 001",), "conservation"),
    ("radix-part-page", CachesPartOfAPage, "a page not full is cached", ("mutant",), "structure"),
    ("radix-leaves-only", with_tree(LeavesCountOnly), "only leaves count", ("mutant",), "accounting"),
    ("radix-match-short", with_tree(MatchesOneLess), "a match is too short", ("sglang#12092",), "prefix_completeness"),
    ("radix-keeps-tokens", KeepsTokens, "the caller's tokens are kept", ("seed 001",), "content_equality"),
    ("radix-keeps-slots", KeepsSlots, "the caller's slots are kept", ("seed 001",), "conservation"),
    ("radix-free-zero", FreesFromZero, "duplicates freed from 0", ("mini-sglang#142",), "conservation"),
    ("radix-dup-leak", KeepsDuplicates, "duplicates leak", ("sglang#13826",), "conservation"),
    ("radix-rest-leak", KeepsTheRest, "the last page leaks", ("sglang#13826",), "conservation"),
    ("radix-finish-half", FinishesBeforeItAsserts, "half done, then refused", ("seed 001",), "atomicity"),
    ("radix-no-remap", UnfinishedKeepsItsSlots, "freed duplicates in use", ("mini-sglang#142",), "eviction_safety"),
    ("radix-old-lock", UnfinishedKeepsTheOldLock, "the lock stays behind", ("sglang#1858",), "refcount_exact"),
    ("radix-old-handle", UnfinishedKeepsTheHandle, "a handle outlives its lock", ("mutant",), "no_double_free"),
    ("radix-trusts-handle", TrustsTheHandle, "other tokens are cached", ("seed 001",), "agreement"),
    ("radix-one-answer", AnswersOneArray, "an answer changes", ("mutant",), "write_isolation"),
    ("radix-reversed", ReversesPages, "pages in the wrong order", ("mutant",), "content_equality"),
    ("radix-last-token", MatchesTheLastToken, "nothing is left to compute", ("vllm#11186",), "prefix_soundness"),
    ("radix-slots-pages", PagesAreSlots, "slots instead of pages", ("seed 001",), "conservation"),
    ("radix-page-twice", AcceptsPageTwice, "one page for two", ("vllm#42571",), "no_aliasing"),
    ("radix-foreign", AcceptsForeignSlots, "slots of others are taken", ("seed 001",), "conservation"),
    ("radix-shows-splits", ShowsSplits, "a match shows", ("seed 001",), "write_isolation"),
    ("radix-counts-tokens", CountsTokens, "sizes in tokens", ("sglang#10637 (b)", "sglang#34823"), "accounting"),
    ("radix-free-only", AllocatesFreeOnly, "refuses to evict", ("sglang#36770",), "admission_honesty"),
    ("radix-refusal-evicts", EvictsBeforeItRefuses, "evicts, then refuses", ("mutant",), "atomicity"),
    ("radix-evict-asserts", EvictAsserts, "an assertion", ("seed 001",), "error_contract"),
    ("radix-evict-loops", EvictLoops, "never returns", ("sglang#36770",), "termination"),
    ("radix-free-front", FreesInFront, "another page is taken", ("mutant",), "agreement"),
    ("radix-reset-held", ResetKeepsHeld, "a reset forgets slots", ("seed 001",), "reset_complete"),
    (
        "radix-reset-tree",
        ResetKeepsTree,
        "a reset keeps the tree",
        ("seed 001", "transformers#31917"),
        "no_double_free",
    ),
    ("radix-locks-run", with_tree(LocksTheRun), "a lock covers more", ("bytedance-iaas/sglang#508",), "refcount_exact"),
    ("radix-lock-skips", with_tree(LocksWhatIsThere), "unlock and lock differ", ("sglang#27147",), "no_double_free"),
    ("radix-counts-locked", with_tree(CountsLocked), "what is skipped counts", ("xllm#55",), "conservation"),
    ("radix-empty-node", with_tree(EmptyNode), "an empty node", ("sglang#28692",), "admission_honesty"),
    ("radix-empty-key", with_tree(EmptyKey), "an empty key is looked up", ("sglang#10637 (a)",), "error_contract"),
    ("radix-other-request", with_tree(AnotherRequestsTokens), "other tokens", ("seed 001",), "prefix_completeness"),
    ("radix-stale-order", StaleInOrder, "a list with what is gone", ("sglang#22592",), "eviction_order"),
    ("radix-keeps-cached", KeepsWhatItCached, "one page in two nodes", ("sglang#35470",), "conservation"),
    ("radix-matches-less", UnfinishedMatchesLess, "inserted, then rejected", ("sglang#29349",), "prefix_completeness"),
    ("radix-allocates-negative", AllocatesNegative, "a negative number", ("seed 001",), "conservation"),
    ("radix-evicts-negative", EvictsNegative, "nothing is evicted", ("seed 001",), "error_contract"),
    ("radix-allocates-less", AllocatesWhatThereIs, "fewer than asked for", ("seed 001",), "conservation"),
    ("radix-allocate-asserts", AllocateAsserts, "an assertion", ("seed 001",), "error_contract"),
    ("radix-empty-asserts", EmptyRequestAsserts, "an assertion", ("seed 001",), "error_contract"),
    ("radix-reset-missing", ResetIsMissing, "no reset", ("seed 001",), "error_contract"),
    ("radix-render-cut", RenderIsCut, "the picture is cut", ("seed 001",), "agreement"),
    ("radix-reset-cached", ResetKeepsCached, "a reset that forgets nothing", ("vllm#57727",), "reset_complete"),
    ("radix-drops-parent", InsertDropsParent, "an extension replaces", ("mutant",), "structure"),
    ("radix-finish-frees", FinishFreesLocked, "one ends, all lose", ("TensorRT-LLM#17926",), "eviction_safety"),
)
