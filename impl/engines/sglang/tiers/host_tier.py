"""kv_tier over the pages of SGLang's host pool: the allocator of HiCache's memory under the plainest index.

Read from sglang/srt/mem_cache/pool_host/base.py and memory_pool_host.py. Real is the allocator, `alloc` and `free` of
HostKVCache with their checks, under pages of two slots. A host pool has no keys: those are in the radix tree above it,
which the targets of kv_manager drive. Here the specification's own index stands above the pool, so that what is tested
is which pages the pool gives out and takes back. The memory itself is not allocated: it would be pinned.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE
from kvlockstep.reference.kv_tier.tier import KVTier

PACKAGE = "sglang.srt.mem_cache"
BARE = (f"{PACKAGE}.pool_host",)
PAGE = 2

with without_the_rest(ENGINE, BARE, ()):
    base = import_module(f"{PACKAGE}.pool_host.base")


class Pool(base.HostKVCache):  # type: ignore[misc, name-defined]
    """A pool without memory, which nothing is copied to."""


Pool.__abstractmethods__ = frozenset()


def host_pool(pages: int, page: int) -> Any:
    """A host pool of `pages` pages of `page` slots."""
    return Pool(
        dtype=torch.float16,
        device_capacity_tokens=0,
        size_per_token=1,
        start_layer=0,
        end_layer=1,
        host_to_device_ratio=1.0,
        host_size=0,
        page_size=page,
        layout="layer_first",
        pin_memory=False,
        device="cpu",
        is_dummy=True,
        host_token_capacity=pages * page,
    )


class Pages:
    """The free pages of a pool, as the list that the index keeps them in."""

    def __init__(self, pages: int) -> None:
        self.pool = host_pool(pages, PAGE)

    def __len__(self) -> int:
        return int(self.pool.available_size()) // PAGE

    def __iter__(self) -> Iterator[int]:
        slots = torch.cat([self.pool.free_slots, *self.pool.release_slots])
        yield from (slots[::PAGE] // PAGE).tolist()

    def pop(self, _: int) -> int:
        slots = self.pool.alloc(PAGE).tolist()
        assert slots == list(range(slots[0], slots[0] + PAGE)), f"the slots {slots} are not those of a page"
        return int(slots[0]) // PAGE

    def append(self, page: int) -> None:
        self.pool.free(torch.arange(page * PAGE, (page + 1) * PAGE))


class SglangHostTier(KVTier):
    """The specification over the pages of a host pool."""

    engine = "sglang"
    version = ENGINE.version

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._free: Any = Pages(units)
