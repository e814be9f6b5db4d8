"""Laws of paged_alloc, over one call and the pages that are free around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, counted, law, laws_of


class Pool(NamedTuple):
    """What the allocator says: its free pages, and how many slots are available."""

    free: Sequence[int]
    available: int


def new_pages(start: int, length: int, page_size: int) -> int:
    """Pages that begin at one of the tokens [start, length), counted token by token."""
    return sum(position % page_size == 0 for position in range(start, length))


class Batch(NamedTuple):
    """A call for new slots. Request i has tokens [starts[i], lengths[i]) new, behind last_slots[i] (-1 for none).

    `slots` is the answer, None if it was refused; `before` and `after` are the pools around the call.
    """

    page_size: int
    starts: Sequence[int]
    lengths: Sequence[int]
    last_slots: Sequence[int]
    slots: Sequence[int] | None
    before: Pool
    after: Pool

    @property
    def needed(self) -> int:
        """Pages that begin at one of the new tokens."""
        return sum(new_pages(*ends, self.page_size) for ends in zip(self.starts, self.lengths, strict=True))

    def parts(self) -> list[Sequence[int]]:
        """The answer, cut into the slots of each request."""
        slots, parts, at = self.slots or (), [], 0
        for start, length in zip(self.starts, self.lengths, strict=True):
            parts.append(slots[at : at + length - start])
            at += length - start
        return parts


@law("paged_alloc", answers=("llama.cpp#10873", "sglang#31616"))
def admission_honesty(batch: Batch) -> str | None:
    """A batch is refused if and only if it needs more pages than are free."""
    needed, free = batch.needed, len(batch.before.free)
    if (batch.slots is None) == (needed > free):
        return None
    verb = "refused" if batch.slots is None else "served"
    return f"a batch that needs {counted(needed, 'page')} was {verb} with {free} free"


@law("paged_alloc", answers=("Megatron-LM#6091",))
def atomicity(batch: Batch) -> str | None:
    """A batch that is refused takes nothing."""
    if batch.slots is None and set(batch.before.free) != set(batch.after.free):
        before, after = sorted(batch.before.free), sorted(batch.after.free)
        return f"a batch was refused, but the free pages went from {before} to {after}"
    return None


@law("paged_alloc", answers=("sglang#38840",))
def coverage(batch: Batch) -> str | None:
    """Each new token of a batch has one slot."""
    wanted = sum(batch.lengths) - sum(batch.starts)
    if batch.slots is not None and len(batch.slots) != wanted:
        return f"{counted(len(batch.slots), 'slot')} came for {counted(wanted, 'token')}"
    return None


@law("paged_alloc", answers=("sglang#13501", "sglang#38840"))
def no_aliasing(batch: Batch) -> str | None:
    """A new page was free, and goes to one request."""
    size = batch.page_size
    taken = Counter(
        slots[position - start] // size
        for start, slots in zip(batch.starts, batch.parts(), strict=True)
        for position in range(start, start + len(slots))
        if position % size == 0
    )
    for page, times in taken.items():
        if page not in batch.before.free:
            return f"page {page} was handed out, which was not free"
        if times > 1:
            return f"page {page} was handed out {counted(times, 'time')} in one batch"
    return None


@law("paged_alloc", answers=("sglang#31616", "sglang#13826"))
def page_order(batch: Batch) -> str | None:
    """A token at a page boundary has the first slot of a page; any other has the slot behind its predecessor's."""
    for request, (start, slots) in enumerate(zip(batch.starts, batch.parts(), strict=True)):
        last = batch.last_slots[request]
        for position, slot in enumerate(slots, start):
            first = position % batch.page_size == 0
            if first and slot % batch.page_size:
                return f"position {position} of request {request} begins a page and has slot {slot}, inside of one"
            if not first and slot != last + 1:
                return (
                    f"position {position} of request {request} has slot {slot}, not {last + 1} behind its predecessor"
                )
            last = slot
    return None


@law("paged_alloc", answers=("kvcached#401", "sglang#38840"))
def conservation(held: Counter[int], pool: Pool, pages: Sequence[int]) -> str | None:
    """Each page is free or held by one request, and never both. `held` counts the requests that hold each page."""
    free = Counter(pool.free)
    for page in pages:
        times = free[page] + held[page]
        if times != 1:
            return f"page {page} is {'neither free nor held' if times == 0 else 'free or held more than once'}"
    foreign = sorted(set(free) - set(pages))
    return f"page {foreign[0]} is free, and does not exist" if foreign else None


@law("paged_alloc", answers=("xllm#829",))
def accounting(pool: Pool, page_size: int) -> str | None:
    """available is page_size for each free page."""
    if pool.available != len(pool.free) * page_size:
        return (
            f"available is {pool.available} with {counted(len(pool.free), 'page')} of {counted(page_size, 'slot')} free"
        )
    return None


LAWS = (*laws_of(globals()), ERROR_CONTRACT, TERMINATION)
