"""kv_scheduler with groups and two tiers on SGLang's Scheduler (0.5.23): host tier and storage, on CPU.

The scheduler is driven as in window_hierarchy.py and state_hierarchy.py, the storage is that of sided_storage.py: what
is fetched needs the pages of the window at its end, or the state there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.tiers.sided_storage import SidedStoring
from kvlockstep.impl.engines.sglang.tiers.state_hierarchy import (
    DrainingStateScheduler,
    StateHierarchy,
    StateWindowHierarchy,
    UnparkedStateScheduler,
)
from kvlockstep.impl.engines.sglang.tiers.stored import AskingScheduler
from kvlockstep.impl.engines.sglang.tiers.window_hierarchy import UnparkedScheduler, WindowHierarchy


class AskingWindowScheduler(AskingScheduler, UnparkedScheduler):
    """Without sglang-window-parked-under-store and sglang-scheduler-aborted-under-store."""


class KeepingStateScheduler(AskingScheduler, DrainingStateScheduler):
    """Without sglang-state-overwritten and sglang-scheduler-aborted-under-store."""


class GivingBack(AskingScheduler):
    """Without sglang-left-out-keeps-state: a request that is left out gives back what a refused one does."""

    def _prefetch_after_device_hit_loss(self, req: Any) -> bool:
        left_out = super()._prefetch_after_device_hit_loss(req)
        if left_out:
            give_back(self.tree_cache, req)
        return left_out


class AskingStateScheduler(GivingBack, KeepingStateScheduler):
    """Without all three."""


class AskingStateWindowScheduler(GivingBack, UnparkedStateScheduler):
    """Without sglang-window-parked-under-store as well."""


class StoredWindows(WindowHierarchy, SidedStoring):
    """A Scheduler over full attention and a window, with a host tier and a storage."""

    _kind = AskingWindowScheduler


class StoredStates(StateHierarchy, SidedStoring):
    """A Scheduler over full attention and states, with a host tier and a storage."""

    _kind = AskingStateScheduler


class KeptStates(StoredStates):
    """As the engine is: a request that is left out keeps the state that it was to have."""

    _kind = KeepingStateScheduler

    def _states_in_limbo(self, group: int) -> int:
        queued = [req for req in self._reqs.values() if req.kv.holds_mamba and not req.kv.holds_kv]
        return super()._states_in_limbo(group) + len(queued)


class StoredStatesAndWindows(StateWindowHierarchy, SidedStoring):
    """A Scheduler over full attention, a window and states, with a host tier and a storage."""

    _kind = AskingStateWindowScheduler


def give_back(tree: Any, req: Any) -> None:
    """A request that has matched and does not start gives back the state that it was to have."""
    req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = None, False
    if req.kv.holds_mamba:
        tree.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
        req.kv.mamba_pool_idx = None


make_window = partial(StoredWindows, core="rust", overlap=True)
make_state = partial(StoredStates, core="rust", chunk=2, interval=4, overlap=True)
make_window_timeout = partial(make_window, policy="timeout", batch=1)
make_state_timeout = partial(make_state, policy="timeout", batch=1)
make_state_kept = partial(KeptStates, core="rust", chunk=2, interval=4, overlap=True)
make_state_window = partial(StoredStatesAndWindows, core="rust", chunk=2, interval=4, overlap=True)
