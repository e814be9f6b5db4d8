"""Faults of radix_cache: looking up the longest cached prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.radix_cache.nodes import with_tree
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.radix_cache import RadixCache
from kvlockstep.reference.radix_cache.contract import RadixMatch
from kvlockstep.reference.radix_cache.tree import Entry, Handle, Prefix, RadixTree


@fault("radix-match-age", law="eviction_order", seen=("mutant",), make=with_tree)
class MatchKeepsAge(RadixTree):
    """A match does not refresh the nodes on its path."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        ages = {prefix: entry.used for prefix, entry in self._entries.items()}
        found = super().match(sequence)
        for prefix, age in ages.items():
            self._entries[prefix].used = age
        return found


@fault("radix-first-token", law="conservation", seen=("seed 001",), make=with_tree)
class SiblingsByFirstToken(RadixTree):
    """Children are keyed by the first token of a page, so a second child replaces the first."""

    def insert(self, sequence: Prefix, pages: Iterable[int]) -> None:
        known = set(self._entries)
        super().insert(sequence, pages)
        for new in [p for p in self._entries if p not in known]:
            start = new[: 1 - self._size] if self._size > 1 else new
            for other in [p for p in known if p[: len(start)] == start and p[: len(new)] != new]:
                if other in self._entries and not self._entries[other].locks:
                    del self._entries[other]


@fault("radix-match-short", law="prefix_completeness", seen=("sglang#12092",), make=with_tree)
class MatchesOneLess(RadixTree):
    """A match leaves out its last page."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        return super().match(sequence[: max(0, self.cached_length(sequence) - self._size)])


@fault("radix-last-token", law="prefix_soundness", seen=("vllm#11186",))
class MatchesTheLastToken(RadixCache):
    """A match covers the whole prompt and leaves no token to compute."""

    def match_request(self, tokens: Sequence[int]) -> RadixMatch:
        if not len(tokens):
            raise InvalidArgument("no tokens")
        return self.match_prefix(tokens)


@fault("radix-empty-node", law="admission_honesty", seen=("sglang#28692",), make=with_tree)
class EmptyNode(RadixTree):
    """A match of less than a page returns the handle of an empty node that is not in the tree."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        found = super().match(sequence)
        cut = 0 < len(sequence) < self._size and any(p[: len(sequence)] == sequence for p in self._entries)
        return (Handle((), Entry(-1, self._clock)), []) if cut else found


@fault("radix-empty-key", law="error_contract", seen=("sglang#10637 (a)",), make=with_tree)
class EmptyKey(RadixTree):
    """A sequence shorter than a page is looked up under an empty key, which raises KeyError."""

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        if 0 < len(sequence) < self._size:
            raise KeyError(())
        return super().match(sequence)


@fault("radix-other-request", law="prefix_completeness", seen=("seed 001",), make=with_tree)
class AnotherRequestsTokens(RadixTree):
    """From the second page on, a match compares the tokens of the previous request."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._last: Prefix = ()

    def match(self, sequence: Prefix) -> tuple[Handle, list[int]]:
        last, self._last = self._last, sequence
        size = self._size
        mixed = sequence[:size] + last[size : len(sequence)]
        return super().match(mixed if len(mixed) == len(sequence) else sequence)
