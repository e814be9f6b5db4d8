"""kv_store on what SGLang copies KV and states with (0.5.23): rows, pages and slots of conv states.

Source: sglang/srt/mem_cache/memory_pool.py (MHATokenToKVPool.move_kv_cache), sglang/kernels/ops/kvcache/
{cache_move, copy_pages}.py and sglang/srt/mem_cache/mamba_slot_fused.py.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.cut import cut
from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.loading import find
from kvlockstep.impl.engines.row_store import GUARD_BYTES, BlockCopies, RowCopies
from kvlockstep.impl.engines.sglang.get import GET
from kvlockstep.impl.interpreted import triton
from kvlockstep.reference.kv.shape import KVShape

ENGINE = find("sglang", "kernels/ops/kvcache/cache_move.py", GET)
NAMES = (
    "sglang.kernels.ops.kvcache.cache_move",
    "sglang.kernels.ops.kvcache.copy_pages",
    "sglang.srt.mem_cache.mamba_slot_fused",
    "sglang.kernels.ops.memory.ptr_table",
)
GIVEN: dict[str, dict[str, Any]] = {"sglang.srt.utils": {"is_cpu": lambda: False}}
moving, paging, states, _ = Apart(ENGINE, NAMES, GIVEN).load(*NAMES)
pool = cut(
    ENGINE,
    "sglang.srt.mem_cache.memory_pool",
    (
        "move_kv_cache_native",
        "MHATokenToKVPool._init_kv_copy_and_warmup",
        "MHATokenToKVPool._move_kv_cache_impl",
    ),
    {
        "torch": torch,
        "copy_all_layer_kv_cache_func": moving.copy_all_layer_kv_cache_func,
        "next_power_of_2": triton.next_power_of_2,
    },
)


class MovedRows(RowCopies):
    """Rows by the tiled kernel, for all layers in one launch; a row may be a target and a source."""

    engine = "sglang"
    version = ENGINE.version
    native = False

    def __init__(self, blocks: int, block_size: int, host_blocks: int, shape: KVShape, layout: str) -> None:
        super().__init__(blocks, block_size, host_blocks, shape, layout)
        rows = self.rows()
        self._pool = SimpleNamespace(
            layer_num=len(rows) // 2,
            device=self.device,
            k_buffer=rows[0::2],
            v_buffer=rows[1::2],
            data_ptrs=torch.tensor([r.data_ptr() for r in rows], dtype=torch.uint64, device=self.device),
            data_strides=torch.tensor([self._token * shape.item_bytes] * len(rows), device=self.device),
            use_native_move_kv_cache=self.native,
            _slot_move_pointer_buffers=lambda: rows,
            _move_native_fp4_scales=lambda _target, _source: None,
        )
        if blocks and not self.native:
            pool._init_kv_copy_and_warmup(self._pool)

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        pool._move_kv_cache_impl(self._pool, targets, sources)


class NativeRows(MovedRows):
    """Rows by indexing, as the pool does where the tiled kernel is not set up."""

    native = True


class Pages(BlockCopies):
    """Whole pages of a pool that keeps all layers of a page together; sources and targets are apart.

    Without a card the engine itself copies by indexing.
    """

    engine = "sglang"
    version = ENGINE.version
    apart = page_major = True

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        planes, blocks, width = self._planes.shape
        page = planes * width * self.shape.item_bytes
        paging.copy_pages(self._raw[GUARD_BYTES:], targets, sources, blocks, page)


class ConvStates(BlockCopies):
    """Slots of conv states, moved as bfloat16; K and V stand for two streams of them. Sources and targets are apart."""

    engine = "sglang"
    version = ENGINE.version
    apart = True
    word = 2

    def launch(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        planes = self._planes.view(torch.bfloat16)
        tensors = states.build_conv_slot_descriptor([planes[0::2], planes[1::2]])
        states.fused_copy_conv_slots(tensors, sources, targets)
