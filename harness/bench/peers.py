"""Peers of the speed rows: the block pool of vLLM and the radix tree of SGLang, each driven as its scheduler does."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.targets.importing import load

BLOCK_SIZE = 16


def part(spec: str) -> Any:
    """What `module:attribute` names, or None if its engine is not on this machine."""
    with suppress(UsageError):
        return load(spec)
    return None


class OurPool:
    """A pool of ours, for a server that hashes a request, takes blocks for it, caches them, frees and hits them."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.allocate, self.free, self.touch = pool.allocate, pool.free, pool.touch

    def request(self, tokens: Sequence[int]) -> Any:
        """A request whose keys are known."""
        keys = self.pool.request_keys()
        keys.extend(tokens)
        _ = keys.hashes
        return keys

    def cache(self, request: Any, table: Any) -> None:
        """The table caches the whole request."""
        self.pool.cache_full_blocks(request, table, 0, len(table))

    def table(self, blocks: list[int]) -> Any:
        """A table of these blocks."""
        return blocks


class VllmPool:
    """The same on vLLM's pool. Hashes are random: their time has rows of its own."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.allocate, self.touch = pool.get_new_blocks, pool.touch

    def request(self, tokens: Sequence[int]) -> Any:
        """A request whose keys are known."""
        return SimpleNamespace(block_hashes=[os.urandom(32) for _ in range(len(tokens) // BLOCK_SIZE)])

    def cache(self, request: Any, table: Any) -> None:
        """The table caches the whole request."""
        self.pool.cache_full_blocks(request, table, 0, len(table), BLOCK_SIZE, 0)

    def free(self, table: Any) -> None:
        """Lets go of a table, its last block first."""
        self.pool.free_blocks(reversed(table))

    def table(self, blocks: list[int]) -> Any:
        """A table of these blocks; block 0 is vLLM's own."""
        return [self.pool.blocks[block + 1] for block in blocks]


def pools(make: Callable[..., Any]) -> dict[str, Callable[[int], Any]]:
    """Makers of a server's pool of so many blocks: "ours" first, "vLLM" where it is."""
    makers: dict[str, Callable[[int], Any]] = {"ours": lambda blocks: OurPool(make(blocks, BLOCK_SIZE))}
    vllm = part("kvlockstep.impl.engines.vllm.modules:pool")
    if vllm is not None:
        makers["vLLM"] = lambda blocks: VllmPool(vllm.BlockPool(blocks + 1, True, BLOCK_SIZE))
    return makers


def queues(make: Callable[..., Any]) -> dict[str, Callable[[int], tuple[Any, Any]]]:
    """Makers of a full free queue: how to pop from it and to append to it; "ours" first, "vLLM" where it is."""

    def ours(blocks: int) -> tuple[Any, Any]:
        queue = make(blocks, range(blocks))
        return queue.pop, queue.append

    makers: dict[str, Callable[[int], tuple[Any, Any]]] = {"ours": ours}
    utils = part("kvlockstep.impl.engines.vllm.modules:utils")
    if utils is not None:

        def vllm(blocks: int) -> tuple[Any, Any]:
            queue = utils.FreeKVCacheBlockQueue([utils.KVCacheBlock(block) for block in range(blocks)])
            return queue.popleft_n, queue.append_n

        makers["vLLM"] = vllm
    return makers


def hashers(tokens: list[int]) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """vLLM's hashes of the tokens: of a whole request, and of one that grows by the block."""
    hashing = part("kvlockstep.impl.engines.vllm.modules:hashing")
    if hashing is None:
        return {}
    utils, make_request = (part(f"kvlockstep.impl.engines.vllm.modules:{name}") for name in ("utils", "make_request"))
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name in ("xxhash", "sha256"):
        hasher = utils.get_request_block_hasher(BLOCK_SIZE, getattr(hashing, name))
        whole = make_request("whole", tokens, None, None, False)

        def grow(hasher: Any = hasher) -> None:
            request = make_request("grown", [], hasher, None, False)
            for start in range(0, len(tokens), BLOCK_SIZE):
                request.append_output_token_ids(tokens[start : start + BLOCK_SIZE])

        calls[f"vLLM {name}"] = partial(hasher, whole), grow
    return calls


class NoAllocator:
    """Stands for the allocator of a tree that is timed alone."""

    device = "cpu"

    def free(self, *_given: Any, **_options: Any) -> None:
        """Forgets slots."""

    free_segment = free_segments = free_full = free


class SGLangTree:
    """SGLang's tree on its Rust core: over its own allocator of `tokens` tokens, or alone if that is 0."""

    def __init__(self, tokens: int) -> None:
        import torch  # noqa: PLC0415  torch is an extra

        manager = "kvlockstep.impl.engines.sglang.manager"
        base = "sglang.srt.mem_cache.base_prefix_cache"
        self._torch = torch
        self._insert, self._match, self._evict = (load(f"{base}:{n}Params") for n in ("Insert", "MatchPrefix", "Evict"))
        self.key = load("sglang.srt.mem_cache.radix_cache:RadixKey")
        _, self._allocator, self._tree = load(f"{manager}:memory")(max(tokens, 1), 1, "rust", 1)
        if not tokens:
            params, component = load(f"{manager}:CacheInitParams"), load(f"{manager}:ComponentType").FULL
            self._tree = load(f"{manager}:UnifiedRadixCache")(
                params(
                    disable=False,
                    req_to_token_pool=None,
                    token_to_kv_pool_allocator=NoAllocator(),
                    page_size=1,
                    tree_components=(component,),
                    tree_core_backend="rust",
                )
            )

    def slots(self, count: int) -> Any:
        """Slots for a tree alone."""
        return self._torch.arange(count)

    def insert(self, key: Any, slots: Any, matched: int = 0) -> int:
        """Caches a sequence whose first `matched` tokens its request had matched; the length that was there."""
        return int(self._tree.insert(self._insert(key=key, value=slots, prev_prefix_len=matched)).prefix_len)

    def match(self, key: Any) -> tuple[int, Any, Any]:
        """The length of the longest cached prefix, its slots and its last node."""
        found = self._tree.match_prefix(self._match(key=key))
        node = found.last_device_node
        return found.device_prefix_len, self._tree.path_device_indices(node), node

    def allocate(self, count: int) -> Any:
        """Slots of the allocator; what is missing is evicted."""
        slots = self._allocator.alloc(count)
        if slots is None:
            self._tree.evict(self._evict(num_tokens=count - self._allocator.available_size()))
            slots = self._allocator.alloc(count)
        return slots

    def start(self, prompt: array[int]) -> tuple[Any, int]:
        """Matches and locks a prompt and gives it slots: the request, and the length that hit."""
        length, slots, node = self.match(self.key(prompt, limit=len(prompt) - 1))
        lock = self._tree.lock(node)
        return (lock, length, self._torch.cat([slots, self.allocate(len(prompt) - length)])), length

    def finish(self, request: Any, full: array[int]) -> None:
        """Gives slots to the answer, caches the request and unlocks it."""
        lock, length, slots = request
        slots = self._torch.cat([slots, self.allocate(len(full) - len(slots))])
        self.insert(self.key(full), slots, length)
        self._tree.unlock(lock)


def sglang_tree() -> Callable[[int], SGLangTree] | None:
    """The class, or None if SGLang is not on this machine."""
    return SGLangTree if part("kvlockstep.impl.engines.sglang.manager:memory") is not None else None
