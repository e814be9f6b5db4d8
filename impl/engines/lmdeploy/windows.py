"""kv_manager with a window and nothing else on LMDeploy's WindowBlockManager (0.16).

A model whose configuration names a sliding window (Mistral, Phi-3) has it in all layers, and the engine switches its
prefix cache off (executor/base.py). The calls are those of manager.py. A window slides when its request is given a
block: the blocks that it has left are dropped from the table, or go on at its end. The kernels count positions from the
first block that is left (`num_ignored_history`) and read `window_size` positions in front of the token itself.
A request that is preempted with a block behind its last token, which the engine never does, would lose a block too
many when it comes back (known.toml): here it gives its blocks back, unless `as_is`.
Source: lmdeploy/pytorch/paging/block_manager/window_block_manager.py, engine/inputs_maker.py and
kernels/cuda/{pagedattention, flashattention}.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.lmdeploy.manager import LmdeployKVManager
from kvlockstep.reference.kv_manager.groups.contract import Group


class LmdeployWindowManager(LmdeployKVManager):
    """One Scheduler with `blocks` GPU blocks and a window of `window` positions in front of each token."""

    prefix_cache = early_publish = False

    def __init__(self, blocks: int, block_size: int, window: int, as_is: bool = False) -> None:
        self.groups = (Group("window", block_size, reach=window + 1),)
        super().__init__(blocks, block_size, as_is, window_size=window, enable_prefix_caching=False)

    def slots(self, rid: str, group: int = 0) -> list[int | None]:  # type: ignore[override]
        ignored: int = self._sequences[rid].num_ignored_history
        return [None] * ignored + super().slots(rid)

    def held(self, rid: str, group: int) -> list[int]:
        return self.blocks(rid)

    def avail(self) -> int:
        return self.free_now() + len(self._evictable())

    def free_now(self) -> int:
        return int(self._blocks.get_num_free_gpu_blocks())

    def free_slots(self) -> Iterable[int] | None:
        return self.free_blocks()

    def _comes_back_wrong(self, rid: str, seq: Any) -> bool:
        """Blocks behind the last token are counted as if they stood in front of the window."""
        stop = seq.num_ignored_history + seq.num_blocks * self.block_size
        return super()._comes_back_wrong(rid, seq) or stop >= seq.num_history_ids + self.block_size


make_window = partial(LmdeployWindowManager, window=3)
make_window_wide = partial(LmdeployWindowManager, window=6)
make_window_keeping_blocks = partial(LmdeployWindowManager, window=3, as_is=True)
