"""Faults of radix_cache: inserting a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import NotHeld
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.tree import Entry, Prefix, RadixTree


@fault("radix-keeps-tokens", law="content_equality", seen=("seed 001",))
class KeepsTokens(RadixCache):
    """An insert keeps the caller's token array, which the caller may change later."""

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


@fault("radix-keeps-slots", law="conservation", seen=("seed 001",))
class KeepsSlots(RadixCache):
    """An insert keeps the caller's slot array, which the caller may change later."""

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


@fault("radix-part-page", law="structure", seen=("mutant",))
class CachesPartOfAPage(RadixCache):
    """The last page of a sequence is cached although it is not full."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        super()._insert(sequence, pages)
        whole = len(sequence) // self._size * self._size
        if whole < len(sequence) and pages:
            self._tree._entries[sequence] = Entry(pages[-1], self._tree._clock)
            self._held.discard(pages[-1])


@fault("radix-reversed", law="content_equality", seen=("mutant",))
class ReversesPages(RadixCache):
    """The pages of a sequence are cached in reverse order."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        whole = (len(sequence) - self._tree.cached_length(sequence)) // self._size
        super()._insert(sequence, pages[:whole][::-1] + pages[whole:])


@fault("radix-page-twice", law="no_aliasing", seen=("vllm#42571",))
class AcceptsPageTwice(RadixCache):
    """An insert accepts slots that are named twice, so two pages share them."""

    def _held_pages(self, slots: Sequence[int]) -> list[int]:
        pages = [slot // self._size for slot in slots[:: self._size]]
        try:
            return super()._held_pages(slots)
        except NotHeld:
            if self._held.issuperset(pages):
                return pages
            raise


@fault("radix-foreign", law="conservation", seen=("seed 001",))
class AcceptsForeignSlots(RadixCache):
    """free and insert accept slots that the caller does not hold."""

    def _held_pages(self, slots: Sequence[int]) -> list[int]:
        try:
            return super()._held_pages(slots)
        except NotHeld:
            return [slot // self._size for slot in slots[:: self._size]]


@fault("radix-keeps-cached", law="conservation", seen=("sglang#35470",))
class KeepsWhatItCached(RadixCache):
    """A page that is cached still belongs to the caller, who can cache it a second time."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        held = set(self._held)
        super()._insert(sequence, pages)
        self._held |= held & set(pages[-1:])


@fault("radix-drops-parent", law="structure", seen=("mutant",))
class InsertDropsParent(RadixCache):
    """An insert that extends an unlocked page frees that page and keeps its extensions."""

    def _insert(self, sequence: Prefix, pages: list[int]) -> None:
        known = sequence[: self._tree.cached_length(sequence)]
        super()._insert(sequence, pages)
        parent = self._tree._entries.get(known)
        if parent is not None and not parent.locks and len(sequence) >= len(known) + self._size:
            self._free.append(self._tree._entries.pop(known).page)
