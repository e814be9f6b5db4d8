"""paged_alloc on tensors: the host computes which page each token takes, and the device looks the pages up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kvlockstep.reference.errors import InvalidArgument


class PagedAlloc:
    """`pages` pages of `page_size` slots, all free. Meets PagedAllocTarget.

    `pages`, int64 on `device`, has the free pages as a stack: its first `count` places. The host knows how many are
    free without asking the device. Raises InvalidArgument for a negative or an empty size.
    """

    def __init__(self, pages: int, page_size: int, device: str | torch.device = "cpu") -> None:
        if pages < 0 or page_size < 1:
            raise InvalidArgument(f"{pages=}, {page_size=}: no such pool")
        self._size = page_size
        self._count = pages
        self.pages = torch.arange(pages - 1, -1, -1, dtype=torch.int64, device=device)

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> torch.Tensor | None:
        """Slots for the tokens [prefix_lengths[i], lengths[i]) of each request, int64 on the device; None if short."""
        size, starts, ends = self._size, np.array(prefix_lengths, dtype=np.int64), np.array(lengths, dtype=np.int64)
        first_new = -(-starts // size)
        new = -(-ends // size) - first_new
        needed = int(new.sum())
        if needed > self._count:
            return None
        tokens = ends - starts
        owner = np.repeat(np.arange(len(tokens)), tokens)
        nth_token = np.arange(len(owner)) - (tokens.cumsum() - tokens)[owner]
        position = nth_token + starts[owner]
        nth_page = position // size - first_new[owner]
        behind = np.array(last_slots, dtype=np.int64)[owner] + 1 + nth_token
        # The place of a token's page in the stack; a token in the page that was there before has none.
        place = self._count - 1 - (new.cumsum() - new)[owner] - nth_page.clip(min=0)
        device = self.pages.device
        arrays = place.clip(min=0), position % size, behind, nth_page >= 0
        where, offset, known, fresh = (torch.from_numpy(numbers).to(device) for numbers in arrays)
        self._count -= needed
        return torch.where(fresh, self.pages[where] * size + offset, known) if len(self.pages) else known

    def decode(self, lengths: Sequence[int], last_slots: Sequence[int]) -> torch.Tensor | None:
        """A slot for the last token of each request, int64 on the device; None if pages run short."""
        return self.extend([length - 1 for length in lengths], lengths, last_slots)

    def free(self, slots: Sequence[int]) -> None:
        """Pushes the pages of these slots, each once."""
        pages = np.unique(np.asarray(slots, dtype=np.int64) // self._size)
        self.pages[self._count : self._count + len(pages)] = torch.from_numpy(pages).to(self.pages.device)
        self._count += len(pages)

    def available(self) -> int:
        """Slots of the free pages."""
        return self._count * self._size

    def free_pages(self) -> list[int]:
        """The free pages, the next one first; waits for the device."""
        found: list[int] = self.pages[: self._count].flip(0).tolist()
        return found


def on_device(pages: int, page_size: int) -> PagedAlloc:
    """The same on a card."""
    return PagedAlloc(pages, page_size, "cuda")
