"""kv_scheduler with groups on SGLang's Scheduler (0.5.23) over full attention and Mamba states, on CPU.

The scheduler is driven as in scheduler.py, over the two pools of states.py.

Without extra buffer a request has one state, in pages of one token and without overlap, as the engine asks for. What
the tree gets of a running request is copied at once; no batch is in flight then, so the copies are made with the next.

With extra buffer a request has one or two states more, in which the forward also saves a checkpoint: behind the last
multiple of `chunk` tokens of a prompt, and behind every `interval`-th token that is decoded. The tree is given that
slot, and the request gets another. With `lazy` the second of these slots is there only while a decode saves to it.
Where a checkpoint is saved, the worker works out by itself: layers/attention/hybrid_linear_attn_backend.py
(_init_track_ssm_indices) and forward_batch_info.py (mamba_track_aligned_lens).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from kvlockstep.impl.engines.sglang import states, windows
from kvlockstep.impl.engines.sglang.real_scheduler import ModelWorker, Options, RepairedScheduler, Scheduler, engine
from kvlockstep.impl.engines.sglang.scheduler import SGLangScheduler
from kvlockstep.impl.engines.sglang.states import FULL, SLOTS_PER_REQUEST, STATES, StatePools
from kvlockstep.impl.engines.sglang.windows import WINDOW, WindowPools
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_scheduler.contract import Batch

# The positions of the window beside states.
REACH = 4


class StateWorker(ModelWorker):
    """`steps` are what the last batch does with the state of each of its requests, `copies` are made before it."""

    def forward_batch_generation(self, batch: Any, **options: Any) -> Any:
        result = super().forward_batch_generation(batch, **options)
        own = self._rows.get_mamba_indices(batch.req_pool_indices).tolist()
        self.steps = [
            Step(own[i] if start else None, [*self._tracked(batch, i, start, n), (start + n, own[i])])
            for i, (_, start, n, *_) in enumerate(self.items)
        ]
        hits = batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices
        self.copies = [] if hits[0] is None else list(zip(*(hit.tolist() for hit in hits), strict=True))
        return result

    def _tracked(self, batch: Any, i: int, start: int, n: int) -> list[tuple[int, int]]:
        """The checkpoint that the forward saves of its i-th request, if any: position and slot."""
        if batch.mamba_track_mask is None or not batch.mamba_track_mask[i]:
            return []
        slot = int(batch.mamba_track_indices[i])
        if batch.forward_mode.is_decode():
            return [(start + n, slot)]
        asked, chunk = int(batch.mamba_track_seqlens[i]) - start, batch.model_config.hf_text_config.mamba_chunk_size
        state = n if asked % chunk == 0 else asked // chunk * chunk
        convolution = asked // states.chunk_size() * states.chunk_size()
        if state != convolution:
            raise RuntimeError(f"a checkpoint has the state behind {state} tokens and a convolution of {convolution}")
        return [(start + state, slot)]


class StateScheduler(Scheduler):
    """The engine's, with the worker that keeps states."""

    worker = StateWorker


class SwappingScheduler(StateScheduler):
    """Without sglang-state-overwritten: behind a checkpoint of a decode, the next one goes to the other slot."""

    def process_batch_result(self, batch: Any, result: Any) -> None:
        super().process_batch_result(batch, result)
        rows = self.req_to_token_pool
        for i, saved in enumerate(() if rows.enable_mamba_extra_buffer_lazy else batch.mamba_track_mask_cpu or ()):
            kv = batch.reqs[i].kv
            if saved and kv.mamba_ping_pong_track_buffer is not None:
                kv.mamba_next_track_idx = rows.get_mamba_ping_pong_other_idx(batch.mamba_track_buffer_indices[i])


class MixedScheduler(SwappingScheduler, RepairedScheduler):
    """Without sglang-scheduler-starved-chunk and sglang-state-between-pages as well.

    Which checkpoint a chunk may have is decided as for a context that is spread over ranks: one at the end of a page.
    """

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        name = "_mamba_radix_cache_v2_req_prepare_for_extend"
        place = getattr(engine.ScheduleBatch, name)

        def place_in_pages(batch: Any, req: Any) -> Any:
            with engine.get_parallel().override(dcp_enabled=True):
                return place(batch, req)

        with patch.object(engine.ScheduleBatch, name, place_in_pages):
            return super().get_new_batch_prefill(running_batch)


def in_one(*rounds: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Copies that are made one after the other as copies that are made at once."""
    source: dict[int, int] = {}
    for _, s, t in itertools.chain(*rounds):
        source[t] = source.get(s, s)
    return [(STATES, s, t) for t, s in source.items()]


class SGLangStateScheduler(StatePools, SGLangScheduler):
    """One Scheduler over full attention and states, with as many states as the engine asks for.

    `chunk` and `interval` are of extra buffers, in tokens; chunk is 0 without them.
    """

    states_in_place = True
    groups: tuple[Group, ...]

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        chunk: int = 0,
        interval: int = 0,
        lazy: bool = False,
        kind: Callable[..., Any] = SwappingScheduler,
        **options: Any,
    ) -> None:
        if not chunk:
            blocks, block_size = blocks * block_size, 1
        self._states: dict[str, Any] = {
            "enable_mamba_extra_buffer": chunk > 0,
            "enable_mamba_extra_buffer_lazy": lazy,
            "mamba_cache_chunk_size": max(chunk, block_size),
            "mamba_track_interval": max(interval, block_size),
        }
        with states.configured(self._states):
            super().__init__(blocks, block_size, budget, running, kind, **options)
        self._scheduler.model_config.hf_text_config = SimpleNamespace(mamba_chunk_size=chunk or 1)

    def _memory(self, blocks: int, block_size: int, budget: int, running: int, given: Options) -> tuple[Any, Any, Any]:
        self.groups = Group("full", block_size), Group("state", block_size, pool=STATES)
        rows = self._state_rows(blocks, block_size, running, given)
        self.pools = {FULL: blocks, STATES: rows.mamba_pool.size}
        pages = states.sglang.pages(blocks, block_size)
        return states.memory(rows, pages, block_size, given.core, is_eagle=given.eagle)

    def _state_rows(self, blocks: int, block_size: int, running: int, given: Options) -> states.Rows:
        """The rows of requests, with as many states as the engine asks for."""
        extra, lazy = self._states["enable_mamba_extra_buffer"], self._states["enable_mamba_extra_buffer_lazy"]
        tracking = states.sizing.get_mamba_tracking_slots(extra_buffer=extra, overlap=given.overlap, lazy=lazy)
        slots = (SLOTS_PER_REQUEST + tracking) * running
        return states.Rows(running, (blocks + 1) * block_size, slots, extra, given.overlap, lazy)

    def schedule(self) -> Batch:
        with states.configured(self._states), patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor):
            batch = super().schedule()
        worker, log = self._scheduler.model_worker, self._rows.mamba_pool
        copied, log.copied = log.copied, []
        copies = in_one(copied, [(STATES, s, t) for s, t in worker.copies] if batch.items else [])
        if not batch.items:
            return batch._replace(copies=copies)
        items = [
            item._replace(slots=(), groups=[item.slots, step])
            for item, step in zip(batch.items, worker.steps, strict=True)
        ]
        return batch._replace(items=items, copies=copies)

    def update(self, sampled: Mapping[str, int]) -> Collection[str]:
        with states.configured(self._states):
            return super().update(sampled)

    def abort(self, rid: str) -> None:
        with states.configured(self._states):
            super().abort(rid)

    def reset(self) -> None:
        with states.configured(self._states):
            super().reset()
        self._rows.mamba_pool.copied.clear()

    def slots(self, rid: str, group: int = 0) -> list[int]:
        return super().slots(rid)

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        if group == 0:
            return {slot // self.block_size for slot in super().slots(rid)}
        kv, lock = self._reqs[rid].kv, self._reqs[rid].lock
        held = [int(kv.mamba_pool_idx)] if kv.holds_mamba else []
        if kv.mamba_ping_pong_track_buffer is not None:
            held += [slot for slot in kv.mamba_ping_pong_track_buffer.tolist() if slot != -1]
        if lock is not None and states.STATE not in lock.receipt.skipped_lock_components:
            locked = self._tree.tree_core.get_component_device_value(lock.node, states.STATE)
            held += [] if locked is None else locked.tolist()
        return held


class SGLangStateWindowScheduler(WindowPools, SGLangStateScheduler):
    """One Scheduler over full attention, a window of REACH positions that slides at each token, and states.

    With an extra buffer the window slides no further than the last checkpoint needs (`swa_retain_floor`), so that its
    pool has room for the tokens between two checkpoints.
    """

    def __init__(self, blocks: int, block_size: int, budget: int, running: int, **options: Any) -> None:
        super().__init__(blocks, block_size, budget, running, **options)
        self._scheduler.is_hybrid_swa = True

    def _memory(self, blocks: int, block_size: int, budget: int, running: int, given: Options) -> tuple[Any, Any, Any]:
        window = Group("window", block_size, reach=REACH, pool=WINDOW)
        self.groups = Group("full", block_size), window, Group("state", block_size, pool=STATES)
        rows = self._state_rows(blocks, block_size, running, given)
        chunks = self.overlap * (budget // block_size * block_size)
        interval = 1 + self._states["mamba_track_interval"]
        least = windows.pages_of_window(REACH - 1, interval, block_size, chunks, given.drafts + 1)
        self.pools = {FULL: blocks, WINDOW: least, STATES: rows.mamba_pool.size}
        allocator, swa = windows.pages(self.pools, block_size), windows.sglang.ComponentType.SWA
        options = {"sliding_window_size": REACH - 1, "is_eagle": given.eagle}
        return states.memory(rows, allocator, block_size, given.core, swa, **options)

    def schedule(self) -> Batch:
        with windows.sliding_every(1):
            batch = super().schedule()
        tables: list[Any] = [item.groups for item in batch.items]
        return batch._replace(
            items=[
                item._replace(groups=[full, self._in_group(full, 1), step])
                for item, (full, step) in zip(batch.items, tables, strict=True)
            ]
        )

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        return self._in_group(super().slots(rid), group)

    def held(self, rid: str, group: int) -> Iterable[int] | None:
        return self._held(super().slots(rid), group) if group < 2 else super().held(rid, group)

    def avail(self, pool: str = FULL) -> int:
        return StatePools.avail(self, pool) if pool == STATES else super().avail(pool)

    def free_now(self, pool: str = FULL) -> int:
        return StatePools.free_now(self, pool) if pool == STATES else super().free_now(pool)

    def free_slots(self, pool: str = FULL) -> Iterable[int] | None:
        return StatePools.free_slots(self, pool) if pool == STATES else super().free_slots(pool)


make = SGLangStateScheduler
make_extra = partial(SGLangStateScheduler, chunk=2, interval=4)
make_overlap_extra = partial(make_extra, overlap=True)
make_overlap_extra_python = partial(make_overlap_extra, core="python")
make_overlap_extra_wide = partial(make_overlap_extra, chunk=4, interval=8)
make_overlap_extra_mixed = partial(make_overlap_extra, kind=MixedScheduler, mixed=True)
make_overlap_lazy = partial(make_overlap_extra, lazy=True)
make_overlap_lazy_mixed = partial(make_overlap_lazy, kind=MixedScheduler, mixed=True)
make_unswapped = partial(make_overlap_extra, kind=StateScheduler)
make_unaligned = partial(make_unswapped, mixed=True)
# By default, for a model with chunks of 64 tokens.
make_default = partial(make_unswapped, chunk=64, interval=256)
make_window = SGLangStateWindowScheduler
make_overlap_extra_window = partial(SGLangStateWindowScheduler, chunk=2, interval=4, overlap=True)
