"""paged_alloc in plain lists."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.reference.errors import InvalidArgument


class PagedAlloc:
    """`pages` pages of `page_size` slots, all free. Raises InvalidArgument for a negative or an empty size."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 0 or page_size < 1:
            raise InvalidArgument(f"{pages=}, {page_size=}: no such pool")
        self._size = page_size
        self._free = list(range(pages))

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        needed = sum(map(self._new_pages, prefix_lengths, lengths))
        if needed > len(self._free):
            return None
        slots = []
        for prefix, length, last in zip(prefix_lengths, lengths, last_slots, strict=True):
            for position in range(prefix, length):
                last = self._take() if position % self._size == 0 else last + 1
                slots.append(last)
        return slots

    def decode(self, lengths: Sequence[int], last_slots: Sequence[int]) -> list[int] | None:
        return self.extend([length - 1 for length in lengths], lengths, last_slots)

    def free(self, slots: Sequence[int]) -> None:
        self._free += dict.fromkeys(slot // self._size for slot in slots)

    def available(self) -> int:
        return len(self._free) * self._size

    def free_pages(self) -> list[int]:
        return list(self._free)

    def _new_pages(self, prefix: int, length: int) -> int:
        """Pages that begin at one of the positions [prefix, length)."""
        return len(range(-(-prefix // self._size) * self._size, length, self._size))

    def _take(self) -> int:
        """The first slot of a free page."""
        return self._free.pop(0) * self._size
