"""Faults of paged_alloc."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.paged_alloc.allocator import PagedAlloc


@fault("palloc-page-shared", law="no_aliasing", seen=("mutant",))
class PageShared(PagedAlloc):
    """The last page of a request is also handed to the next one, if that begins at the page's start."""

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        slots = super().extend(prefix_lengths, lengths, last_slots)
        if slots is None or len(lengths) < 2 or prefix_lengths[0] or prefix_lengths[1]:
            return slots
        first, second = lengths[0], lengths[1]
        if not 0 < second <= self._size or not first:
            return slots
        page = slots[(first - 1) // self._size * self._size] // self._size
        self._free.append(slots[first] // self._size)
        return [*slots[:first], *(page * self._size + i for i in range(second)), *slots[first + second :]]


@fault("palloc-held-page", law="no_aliasing", seen=("sglang#13501",))
class HandsOutHeldPage(PagedAlloc):
    """A decode at a page boundary takes the page of its predecessor again."""

    def decode(self, lengths: Sequence[int], last_slots: Sequence[int]) -> list[int] | None:
        slots = super().decode(lengths, last_slots)
        if slots is None:
            return None
        found = []
        for length, last, slot in zip(lengths, last_slots, slots, strict=True):
            again = length > 1 and (length - 1) % self._size == 0
            if again:
                self._free.append(slot // self._size)
            found.append(last // self._size * self._size if again else slot)
        return found


@fault("palloc-partial-from-start", law="page_order", seen=("mutant",))
class PartialFromStart(PagedAlloc):
    """A partly filled page is filled from its start."""

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        starts = [last // self._size * self._size - 1 if last >= 0 else -1 for last in last_slots]
        return super().extend(prefix_lengths, lengths, starts)


@fault("palloc-decode-late", law="page_order", seen=("mutant",))
class DecodeTakesPageLate(PagedAlloc):
    """A decode takes a new page for the last token of a page instead of the first of the next."""

    def decode(self, lengths: Sequence[int], last_slots: Sequence[int]) -> list[int] | None:
        slots = super().decode(lengths, last_slots)
        if slots is None or self._size == 1:
            return slots
        return [self._late(*each) for each in zip(lengths, last_slots, slots, strict=True)]

    def _late(self, length: int, last: int, slot: int) -> int:
        return last - last % self._size if length % self._size == 0 else slot


@fault("palloc-pages-one-more", law="admission_honesty", seen=("mutant",))
class WantsOneMore(PagedAlloc):
    """A batch is refused unless one page more is free than it needs."""

    def _new_pages(self, prefix: int, length: int) -> int:
        return super()._new_pages(prefix, length) + (length > prefix)


@fault("palloc-pages-rounded", law="admission_honesty", seen=("llama.cpp#10873",))
class CountsWholePages(PagedAlloc):
    """Admission counts the pages of the new tokens alone, as if the last page had no room left."""

    def _new_pages(self, prefix: int, length: int) -> int:
        return -(-(length - prefix) // self._size)


@fault("palloc-refusal-takes", law="atomicity", seen=("Megatron-LM#6091",))
class RefusalTakes(PagedAlloc):
    """A batch that is refused keeps the pages that it got before they ran out."""

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        slots = super().extend(prefix_lengths, lengths, last_slots)
        if slots is None:
            self._free.clear()
        return slots


@fault("palloc-tail-lost", law="coverage", seen=("mutant",))
class TailLost(PagedAlloc):
    """The last token of a batch that ends inside of a page has no slot."""

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        slots = super().extend(prefix_lengths, lengths, last_slots)
        return slots[:-1] if slots and slots[-1] % self._size else slots


@fault("palloc-frees-full-pages", law="conservation", seen=("sglang#13826",))
class FreesFullPages(PagedAlloc):
    """Only full pages are given back, so that the last page of a request is lost."""

    def free(self, slots: Sequence[int]) -> None:
        super().free([slot for slot in slots if slot // self._size * self._size + self._size - 1 in slots])


@fault("palloc-frees-each-slot", law="conservation", seen=("sglang#38840",))
class FreesEachSlot(PagedAlloc):
    """A page is given back once for each of its slots."""

    def free(self, slots: Sequence[int]) -> None:
        self._free += [slot // self._size for slot in slots]


@fault("palloc-available-in-pages", law="accounting", seen=("mutant",))
class AvailableInPages(PagedAlloc):
    """available counts pages instead of slots."""

    def available(self) -> int:
        return len(self._free)
