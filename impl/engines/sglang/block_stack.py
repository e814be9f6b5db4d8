"""block_stack on the paged allocator of SGLang, which takes pages from the front of its free list and frees them there.

Of `block_stack` the allocator has the order and the counts. It checks nothing that it is given, and knows of no graph
captures, so that those errors are raised here; SGLang allocates only between its graphs.

What SGLang has no target for:
- `slot_pool`: `TokenToKVPoolAllocator` takes free slots in the order in which they were freed, not the lowest first;
  with `need_sort` it sorts them only when the list runs short. It has neither versions nor `occupy`.
- `radix_cache`: its trees evict whole leaf nodes, all that was inserted together and not split since (asked for 1 token
  of 3, they evict 3), where the contract evicts the fewest pages that suffice. An unlock is no use. A handle is a node,
  and an evicted one is not told from another: `RadixCache` counts its lock, so that `evictable_size` is negative, and
  `UnifiedRadixCache` raises KeyError. The core in Rust shows neither its entries nor their order of eviction. Caching a
  request is `checkpoint_kv_cache` and `release_kv_cache`, on a request and its row; kv_manager calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch

from kvlockstep.impl.engines.sglang.modules import ENGINE
from kvlockstep.reference.errors import CaptureActive, InvalidArgument, NotHeld, OutOfSlots, UnknownSlot

PAGE = 4
allocators = import_module("sglang.srt.mem_cache.allocator")


class PagedBlockStack:
    """Block b is page `blocks` - b of the allocator, whose first page is 1 and on top at first."""

    engine = "sglang"
    version = ENGINE.version

    def __init__(self, blocks: int) -> None:
        if blocks < 0:
            raise InvalidArgument(f"blocks={blocks} is negative")
        self._blocks = blocks
        self._allocator = allocators.PagedTokenToKVPoolAllocator(
            blocks * PAGE, PAGE, torch.int64, "cpu", None, need_sort=False
        )
        self._capturing = False

    @property
    def num_free(self) -> int:
        return int(self._allocator.available_size()) // PAGE

    def acquire(self, n: int) -> list[int]:
        self._between_captures()
        if n < 0:
            raise InvalidArgument(f"n={n} is negative")
        slots = self._allocator.alloc(n * PAGE)
        if slots is None:
            raise OutOfSlots(f"n={n}, but {self.num_free} blocks are free")
        return self._blocks_of(slots[::PAGE] // PAGE)

    def release(self, blocks: Sequence[int]) -> None:
        self._between_captures()
        given = [int(block) for block in blocks]
        if not all(0 <= block < self._blocks for block in given):
            raise UnknownSlot(f"{given} are not all blocks of 0..{self._blocks - 1}")
        if len(set(given)) < len(given) or not set(given).isdisjoint(self.free_blocks()):
            raise NotHeld(f"{given} are not all held, each once")
        pages = [self._blocks - block for block in reversed(given)]
        self._allocator.free_page_ids(torch.tensor(pages, dtype=torch.int64))

    def begin_capture(self) -> None:
        self._between_captures()
        self._capturing = True

    def end_capture(self) -> None:
        if not self._capturing:
            raise InvalidArgument("no capture is active")
        self._capturing = False

    def free_blocks(self) -> list[int]:
        return self._blocks_of(self._allocator.get_all_free_pages())

    def _between_captures(self) -> None:
        if self._capturing:
            raise CaptureActive("a graph capture is active")

    def _blocks_of(self, pages: torch.Tensor) -> list[int]:
        """The blocks of these pages, bottom of the stack first."""
        return [self._blocks - page for page in reversed(pages.tolist())]
