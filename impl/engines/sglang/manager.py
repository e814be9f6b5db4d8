"""kv_manager on the prefix caches of SGLang (0.5.23), over its allocators, request rows and admission budget, on CPU.

Calls come in the order of its scheduler with mixed chunked prefill. A step has one PrefillAdder, made when nothing
more can be decoded: chunks go in first, then each new request is matched once and added. Extends are allocated and
then decodes, each as one batch. After the forward a computed prompt or chunk is published by `checkpoint_kv_cache`,
a decoded token only when the request ends, by `release_kv_cache`; an aborted chunk and a retracted request publish
nothing. The estimate of a request's output is clipped to 0, so that admission asks for the prompt and a page.
Source: sglang/srt, managers/scheduler.py, schedule_policy.py, schedule_batch.py and batch_result_processor.py,
mem_cache/common.py, allocation.py, radix_cache.py and unified_radix_cache.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.sglang.modules import ENGINE, sglang_alone
from kvlockstep.impl.engines.wire import over_the_wire
from kvlockstep.impl.slots import slots_of
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockRemoved, BlockStored, Event

with sglang_alone():
    import sglang.srt.managers.schedule_batch as batches
    from sglang.srt.disaggregation import kv_events
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
    from sglang.srt.mem_cache.events import KvEventLoraNames
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

UNLIMITED = 1 << 40
SHORTER_THAN_POOL = 7


def pages(blocks: int, block_size: int, need_sort: bool = False) -> Any:
    """An allocator of so many pages."""
    made: dict[str, Any] = {"dtype": torch.int64, "device": "cpu", "kvcache": None, "need_sort": need_sort}
    if block_size == 1:
        return TokenToKVPoolAllocator(blocks, **made)
    return PagedTokenToKVPoolAllocator(blocks * block_size, block_size, **made)


def tree_over(rows: Any, allocator: Any, block_size: int, core: str | None, *more: Any, **options: Any) -> Any:
    """The tree over rows and an allocator, of full attention and `more` components; a `RadixCache` without a core."""
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=block_size,
        tree_components=(ComponentType.FULL, *more),
        tree_core_backend=core,
        **options,
    )
    return RadixCache(params) if core is None else UnifiedRadixCache(params)


def memory(
    blocks: int, block_size: int, core: str | None, requests: int, need_sort: bool = False, **options: Any
) -> tuple[Any, Any, Any]:
    """The rows of `requests` requests, an allocator of `blocks` pages, and the tree over both, with its `options`."""
    total = blocks * block_size
    rows = ReqToTokenPool(requests, total + block_size, "cpu", enable_memory_saver=False)
    allocator = pages(blocks, block_size, need_sort)
    return rows, allocator, tree_over(rows, allocator, block_size, core, **options)


class SGLangKVManager:
    """A tree over an allocator of `blocks` pages: `RadixCache`, or `UnifiedRadixCache` with the `core` of this name.

    `requests` rows; `need_sort` as the engine sets it for disaggregation; `is_eagle`: the tree keys pairs of tokens;
    `exact_chunks`: chunks end within a page, as they do behind mixed decodes; `continue_always`: without any room
    left the next chunk of a prompt is scheduled all the same, as in the engine. `adapters`: every other
    extra key is a LoRA adapter, which events name, otherwise the engine's `extra_key`, which they do not.
    The slots of page 0 are padding. The engine has one chunked request at a time; the contract may have more, and each
    gets an adder of its own.
    """

    engine = "sglang"
    version = ENGINE.version
    chunk = True
    tokens_per_decode = 1
    extra_key = True
    can_reset = can_evict_all = True
    hash_trust = "none"
    _memory = staticmethod(memory)
    _adder_type = PrefillAdder

    def __init__(
        self,
        blocks: int,
        block_size: int,
        core: str | None,
        requests: int = 64,
        need_sort: bool = False,
        eviction_policy: str = "lru",
        is_eagle: bool = False,
        exact_chunks: bool = False,
        continue_always: bool = False,
        adapters: bool = True,
    ) -> None:
        self.block_size = block_size
        self.chunk_align = 1 if exact_chunks else block_size
        self._continue_always = continue_always
        self.total = blocks * block_size
        self.output_reserve = block_size + 1
        # Of pairs of tokens no listener can tell a prefix.
        self.event_listener = None if is_eagle else "set"
        self._adapters = adapters
        self._adapter_names = KvEventLoraNames()
        self._rows, self._allocator, self._tree = self._memory(
            blocks,
            block_size,
            core,
            requests,
            need_sort,
            eviction_policy=eviction_policy,
            is_eagle=is_eagle,
            enable_kv_cache_events=not is_eagle,
            kv_event_lora_names=self._adapter_names,
        )
        self._running: dict[str, Any] = {}
        self._retracted: dict[str, Any] = {}
        self._adder: Any = None
        self._chunks: list[Any] = []
        self._decodes: list[Any] = []
        self._due = 0

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        req = self._retracted.get(rid) or self._request(rid, tokens, extra_key)
        if self._adder is None:
            self._adder = self._prefill_adder(self._due)
        self._adder.rem_chunk_tokens = n if n < len(tokens) else self._in_pages(n)
        req.init_next_round_input(self._tree)
        self._adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
        if req not in self._adder.can_run_list:
            self._give_match_back(req)
            return None
        self._retracted.pop(rid, None)
        self._running[rid] = req
        hit: int = req.prefix_len
        return hit

    def append(self, rid: str, token: int) -> None:
        self._running[rid].output_ids.append(token)

    def reserve(self, rid: str, n: int) -> bool:
        req = self._running[rid]
        self._adder = None
        return self._schedule_chunk(req, n) if self._in_prefill(req) else self._schedule_decode(req)

    def copies(self) -> list[tuple[Any, ...]]:
        return []

    def launch(self) -> None:
        extends = self._chunks + (self._adder.can_run_list if self._adder is not None else [])
        if extends:
            batch = self._batch(extends, ForwardMode.EXTEND)
            batch.prefix_lens = [req.prefix_len for req in extends]
            batch.extend_lens = [req.extend_len for req in extends]
            batch.extend_num_tokens = sum(batch.extend_lens)
            batch.seq_lens = batch.seq_lens_cpu = torch.tensor([req.extend_end for req in extends])
            alloc_for_extend(batch)
        if self._decodes:
            batch = self._batch(self._decodes, ForwardMode.DECODE)
            batch.req_pool_indices = torch.tensor([req.kv.req_pool_idx for req in self._decodes])
            batch.seq_lens = batch.seq_lens_cpu = torch.tensor([req.kv.kv_committed_len for req in self._decodes])
            alloc_for_decode(batch, token_per_req=1)
            for req in self._decodes:
                req.decode_batch_idx += 1
        self._forget_step()

    def slots(self, rid: str) -> list[int]:
        kv = self._running[rid].kv
        if kv.holds_kv:
            slots: list[int] = self._rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
            return slots
        locked: list[int] = self._tree.prefix_device_indices(self._running[rid]).tolist()
        return locked

    def commit(self, rid: str, n: int) -> None:
        req = self._running[rid]
        if req.extend_end > req.prefix_len:
            self._allocator.free_group_begin()
            checkpoint_kv_cache(req, self._tree)
            self._allocator.free_group_end()

    def finish(self, rid: str) -> None:
        self._release(self._running.pop(rid), checkpoint=True)

    def abort(self, rid: str) -> None:
        req = self._running.pop(rid)
        self._release(req, checkpoint=not self._in_prefill(req))

    def preempt(self, rid: str) -> None:
        req = self._retracted[rid] = self._running.pop(rid)
        batches.release_req(
            req=req,
            remaing_req_count=len(self._running),
            req_to_token_pool=self._rows,
            token_to_kv_pool_allocator=self._allocator,
            tree_cache=self._tree,
            hisparse_coordinator=None,
        )

    def evict_all(self) -> None:
        self._tree.evict(EvictParams(num_tokens=self._tree.evictable_size()))

    def reset(self) -> None:
        """The engine flushes its cache only when no request runs."""
        for rid in list(self._running):
            self.abort(rid)
        self._retracted.clear()
        self._tree.reset()
        self._rows.clear()
        self._allocator.clear()

    def events(self) -> list[Event]:
        return [self._neutral(event) for event in over_the_wire(kv_events.KVEventBatch, self._tree.take_events())]

    def avail(self) -> int:
        return self.free_now() + int(self._tree.evictable_size())

    def free_now(self) -> int:
        return int(self._allocator.available_size())

    def free_slots(self) -> Iterable[int] | None:
        return slots_of(self._allocator.get_all_free_pages().tolist(), self.block_size)

    def _neutral(self, event: Any) -> Event:
        if isinstance(event, kv_events.AllBlocksCleared):
            return AllBlocksCleared()
        keys = tuple(event.block_hashes)
        if isinstance(event, kv_events.BlockRemoved):
            return BlockRemoved(keys)
        name = event.lora_name or event.cache_salt
        extra_key = None if name is None else int(name)
        return BlockStored(keys, event.parent_block_hash, tuple(event.token_ids), event.block_size, extra_key)

    def _request(self, rid: str, tokens: list[int], extra_key: int | None) -> Any:
        """Even extra keys are LoRA adapters or the engine's `extra_key`, odd ones its `cache_salt`.

        An adapter has an id of 32 digits, which ends the `extra_key`; the scheduler tells its name.
        """
        if extra_key is None:
            return batches.Req(rid, "", array("q", tokens), SamplingParams())
        if extra_key % 2 or not self._adapters:
            names = {("extra_key", "cache_salt")[extra_key % 2]: str(extra_key)}
            return batches.Req(rid, "", array("q", tokens), SamplingParams(), **names)
        req = batches.Req(rid, "", array("q", tokens), SamplingParams(), lora_id=f"{extra_key % 2**128:032x}")
        self._adapter_names.register(req, str(extra_key))
        return req

    def _give_match_back(self, req: Any) -> None:
        """Of a request that is not admitted, as the scheduler does: a match may have taken room for a state."""
        req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
        if req.kv.holds_mamba:
            self._rows.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv.mamba_pool_idx = None

    def _schedule_chunk(self, req: Any, n: int) -> bool:
        """The engine asks only at admission, for the whole prompt; in the contract others may take that room."""
        open_page = self._in_pages(req.prefix_len) - req.prefix_len
        needed = self._in_pages(max(0, n - open_page))
        adder = self._prefill_adder(self._due - open_page)
        room = adder.rem_total_tokens - open_page
        if needed > room and (room > 0 or not self._continue_always):
            return False
        adder.rem_chunk_tokens = n
        req.init_next_round_input()
        adder.add_chunked_req(req)
        self._chunks += adder.can_run_list
        self._due += needed
        return True

    def _schedule_decode(self, req: Any) -> bool:
        needed = self._batch([req], ForwardMode.DECODE).new_tokens_required_next_decode()
        if not self._allocator.check_decode_capacity(num_tokens=self._due + needed, tree_cache=self._tree):
            return False
        self._decodes.append(req)
        self._due += needed
        return True

    def _prefill_adder(self, due: int) -> Any:
        """The admission budget of this step, less what is scheduled and not allocated yet."""
        adder = self._adder_type(
            self.block_size,
            self._tree,
            self._allocator,
            running_batch=None,
            new_token_ratio=0.0,
            rem_input_tokens=UNLIMITED,
            rem_chunk_tokens=UNLIMITED,
            num_mixed_decode_tokens=due,
        )
        adder.exact_chunk_fill = self.chunk_align < self.block_size
        return adder

    def _release(self, req: Any, checkpoint: bool) -> None:
        req.finished_reason = batches.FINISH_LENGTH(len(req.output_ids))
        self._allocator.free_group_begin()
        release_kv_cache(req, self._tree, checkpoint=checkpoint)
        self._allocator.free_group_end()

    def _batch(self, reqs: list[Any], mode: Any) -> Any:
        return batches.ScheduleBatch(
            reqs=reqs,
            forward_mode=mode,
            req_to_token_pool=self._rows,
            token_to_kv_pool_allocator=self._allocator,
            tree_cache=self._tree,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            device="cpu",
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )

    def _forget_step(self) -> None:
        self._adder, self._chunks, self._decodes, self._due = None, [], [], 0

    def _in_prefill(self, req: Any) -> bool:
        return bool(req.extend_end < len(req.full_untruncated_fill_ids))

    def _in_pages(self, tokens: int) -> int:
        return -(-tokens // self.block_size) * self.block_size


def make_radix(blocks: int, block_size: int, **options: Any) -> SGLangKVManager:
    """`RadixCache`, the older tree."""
    return SGLangKVManager(blocks, block_size, None, **options)


def make_unified_python(blocks: int, block_size: int, **options: Any) -> SGLangKVManager:
    """`UnifiedRadixCache` of full attention, with the core in Python."""
    return SGLangKVManager(blocks, block_size, "python", **options)


def make_unified_rust(blocks: int, block_size: int, **options: Any) -> SGLangKVManager:
    """`UnifiedRadixCache` of full attention, with the compiled core that the engine uses by default."""
    return SGLangKVManager(blocks, block_size, "rust", **options)


def make_length_checked(blocks: int, block_size: int) -> SGLangKVManager:
    """Declares the room that the engine's check of a new prompt's length leaves, instead of what admission asks for."""
    manager = make_unified_rust(blocks, block_size)
    manager.output_reserve = SHORTER_THAN_POOL
    return manager


def make_continuing(blocks: int, block_size: int) -> SGLangKVManager:
    """The next chunk of a prompt is scheduled without any room left, as the engine does."""
    return make_unified_rust(blocks, block_size, continue_always=True)


def make_unnamed_keys(blocks: int, block_size: int) -> SGLangKVManager:
    """Even extra keys are the engine's `extra_key`."""
    return make_unified_rust(blocks, block_size, adapters=False)
