"""The contract of paged_alloc: slots for new tokens, from pages. The last page of a request may be partly filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

Ints = Sequence[int]


@runtime_checkable
class PagedAllocTarget(Protocol):
    """Factory `make(pages, page_size)`. Page p has the slots p x page_size up to (p + 1) x page_size.

    A page has a power of two of slots, and 2 at least: with one slot a page has no last part, and engines have another
    allocator for that.

    A batch has a number for each request in every list. The allocator keeps no requests: the caller says where each
    ends, by the slot of its last token.
    """

    def extend(self, prefix_lengths: Ints, lengths: Ints, last_slots: Ints) -> Ints | None:
        """Returns slots for the tokens [prefix_lengths[i], lengths[i]) of each request, one request after the other.
        last_slots[i] is the slot of token prefix_lengths[i] - 1, or -1. None, and nothing is taken, if pages run short.
        """

    def decode(self, lengths: Ints, last_slots: Ints) -> Ints | None:
        """Returns a slot for the last token of each request, of length lengths[i] with it. last_slots[i] is the slot of
        the token before. None, and nothing is taken, if pages run short.
        """

    def free(self, slots: Ints) -> None:
        """The pages of these slots are free again. They are all of the tokens that the caller has in these pages."""

    def available(self) -> int:
        """Returns page_size x the number of free pages. Changes nothing."""

    def free_pages(self) -> Ints:
        """Returns the numbers of the free pages in any order, each once. Changes nothing."""
