"""paged_alloc on SGLang's PagedTokenToKVPoolAllocator, with its Triton kernels (0.5.23).

Pages are numbered from 1: slot 0 is for padding. Source: sglang/srt/mem_cache/allocator/paged.py and
sglang/kernels/ops/memory/allocator.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED, triton

ENGINE = find("sglang", "kernels/ops/memory/allocator.py", GET)


def get_num_new_pages(
    seq_lens: torch.Tensor, page_size: int, prefix_lens: torch.Tensor | None = None, decode: bool = False
) -> int:
    """As in sglang/srt/utils/common.py: a decode begins a page where its length is one more than whole pages."""
    if prefix_lens is None or decode:
        return int((seq_lens % page_size == 1).sum())
    pages = -(-seq_lens // page_size) - -(-prefix_lens // page_size)
    return int(pages.sum())


GIVEN: dict[str, dict[str, Any]] = {
    "sglang.srt.platforms": {
        "current_platform": SimpleNamespace(capabilities=SimpleNamespace(supports_triton=True)),
    },
    "sglang.srt.utils": {
        "get_bool_env_var": lambda _name: False,
        "get_num_new_pages": get_num_new_pages,
        "is_hip": lambda: False,
        "next_power_of_2": triton.next_power_of_2,
    },
}
NAMES = ("sglang.srt.mem_cache.allocator.paged", "sglang.kernels.ops.memory.allocator")
paged, _ = Apart(ENGINE, NAMES, GIVEN).load(*NAMES)


class PagedAllocator:
    """The paged allocator; with `need_sort` freed pages wait, unsorted, until an allocation runs short."""

    engine = "sglang"
    version = ENGINE.version
    interpreted = INTERPRETED

    def __init__(self, pages: int, page_size: int, need_sort: bool = False) -> None:
        self._pool = paged.PagedTokenToKVPoolAllocator(
            pages * page_size, page_size, torch.float16, DEVICE, None, need_sort
        )

    def extend(
        self, prefix_lengths: Sequence[int], lengths: Sequence[int], last_slots: Sequence[int]
    ) -> list[int] | None:
        before, after = torch.tensor(prefix_lengths), torch.tensor(lengths)
        tokens = int((after - before).sum())
        found = self._pool.alloc_extend(
            *(before.to(DEVICE), before, after.to(DEVICE), after, self._tensor(last_slots), tokens)
        )
        return None if found is None else list(found.tolist())

    def decode(self, lengths: Sequence[int], last_slots: Sequence[int]) -> list[int] | None:
        after = torch.tensor(lengths)
        found = self._pool.alloc_decode(after.to(DEVICE), after, self._tensor(last_slots))
        return None if found is None else list(found.tolist())

    def free(self, slots: Sequence[int]) -> None:
        self._pool.free(self._tensor(slots))

    def available(self) -> int:
        return int(self._pool.available_size())

    def free_pages(self) -> list[int]:
        return list(self._pool.get_all_free_pages().tolist())

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=DEVICE)


class SortedAllocator(PagedAllocator):
    """The allocator as it is where freed pages are sorted before they are used again."""

    def __init__(self, pages: int, page_size: int) -> None:
        super().__init__(pages, page_size, need_sort=True)
