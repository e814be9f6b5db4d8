"""kv_scheduler with groups and a storage on SGLang's Scheduler (0.5.23) whose host memory is a buffer only, on CPU.

The scheduler is driven as in buffered.py, over the groups of stored_groups.py. Each component is written by itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.loading import without_the_rest
from kvlockstep.impl.engines.sglang.modules import ENGINE, STUBS
from kvlockstep.impl.engines.sglang.states import STATE
from kvlockstep.impl.engines.sglang.tiers import hicache
from kvlockstep.impl.engines.sglang.tiers.buffered import WINDOW, BufferingScheduler, BufferScheduler, BufferTier
from kvlockstep.impl.engines.sglang.tiers.hicache import controllers
from kvlockstep.impl.engines.sglang.tiers.sided_storage import SidedStoredTier, SidedStoring
from kvlockstep.impl.engines.sglang.tiers.state_hierarchy import StateHierarchy, StateWindowHierarchy
from kvlockstep.impl.engines.sglang.tiers.states import WithStates
from kvlockstep.impl.engines.sglang.tiers.stored_groups import (
    AskingStateScheduler,
    AskingStateWindowScheduler,
    AskingWindowScheduler,
    give_back,
)
from kvlockstep.impl.engines.sglang.tiers.window_hierarchy import WindowHierarchy
from kvlockstep.impl.engines.sglang.tiers.windows import WithWindow

with without_the_rest(ENGINE, hicache.BARE, STUBS):
    radix: Any = importlib.import_module(f"{hicache.PACKAGE}.radix_cache")


class SidedBufferTier(BufferTier, SidedStoredTier):
    """Host pages of all components that are buffers."""


class SidedBuffering(BufferScheduler, SidedStoring):
    """A part of schedulers with groups and buffers. It is named before the scheduler with the groups."""

    tier_type = SidedBufferTier
    # The engine asks for room for one that is written and one that is fetched.
    windows_on_host = 2


class BufferingWindowScheduler(BufferingScheduler, AskingWindowScheduler):
    """Finds the mode in the engine's configuration."""


class BufferingStateScheduler(BufferingScheduler, AskingStateScheduler):
    """Finds the mode in the engine's configuration."""


class BufferingStateWindowScheduler(BufferingScheduler, AskingStateWindowScheduler):
    """Finds the mode in the engine's configuration."""


class WithBufferedWindows(WithWindow):
    """A part of schedulers with a window and buffers. It is named before the scheduler with the groups.

    If `whole`, nothing is loaded whose window would not be whole: see sglang-buffer-window-not-whole.
    """

    def __init__(self, *given: Any, whole: bool = True, **options: Any) -> None:
        super().__init__(*given, **options)
        if whole:
            pipeline = self._host.pipeline
            pipeline.prepare_staged_prefetch = self._with_whole_windows(pipeline.prepare_staged_prefetch)

    def _with_whole_windows(self, prepare: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Gives up what is fetched for a request if the device has lost the window in front of it."""
        pipeline = self._host.pipeline

        def preparing(req: Any) -> bool:
            staged = pipeline.staged_prefetches.get(req.cache_request_handle)
            if staged is not None and not self._whole(staged):
                pipeline.release_staged_hold(req.cache_request_handle, reason="shrunk")
            return prepare(req)

        return preparing

    def _whole(self, staged: Any) -> bool:
        core = self._tree.tree_core
        key = radix.RadixKey(staged.key_tokens, extra_key=staged.extra_key, cache_salt=staged.cache_salt)
        fetched = sum(len(one.host_indices) for one in staged.aux_xfers if one.name == controllers.PoolName.SWA)
        end = staged.matched_len + staged.num_tokens
        begin = max(0, end - self._tree.components[WINDOW].full_window_pages * self.block_size)
        there, *_ = core.match_full_device_prefix(key)
        return end - fetched <= max(there, begin) and not core.swa_tombstone_ranges(key, begin, end - fetched)


class BufferedWindows(WithBufferedWindows, WindowHierarchy, SidedBuffering):
    """A Scheduler over full attention and a window, with buffers and a storage."""

    _kind = BufferingWindowScheduler


class WithBufferedStates(WithStates):
    """A part of schedulers with states and buffers. It is named before the scheduler with the groups."""

    _tree: Any
    _host: Any

    def _kept_states(self) -> set[int]:
        """The states at the ends of the paths that are written, and those that were loaded for nothing."""
        pipeline, core = self._host.pipeline, self._tree.tree_core
        ends = [entry.intent.snapshot.node_id for entry in pipeline.ongoing_write_through.values()]
        kept = [core.get_component_device_value(end, STATE) for end in ends]
        for load in pipeline.ongoing_buffer_load_back.values():
            kept += [states for _, states in load.aux_device_releases]
        return {int(slot) for states in kept if states is not None for slot in states.tolist()}

    def _leave_out(self, req: Any) -> None:
        super()._leave_out(req)  # type: ignore[misc]
        give_back(self._tree, req)


class BufferedStates(WithBufferedStates, StateHierarchy, SidedBuffering):
    """A Scheduler over full attention and states, with buffers and a storage."""

    _kind = BufferingStateScheduler


class BufferedStatesAndWindows(WithBufferedWindows, WithBufferedStates, StateWindowHierarchy, SidedBuffering):
    """A Scheduler over full attention, a window and states, with buffers and a storage."""

    _kind = BufferingStateWindowScheduler


make_window = partial(BufferedWindows, core="rust", overlap=True)
make_window_not_whole = partial(make_window, whole=False)
make_state = partial(BufferedStates, core="rust", chunk=2, interval=4, overlap=True)
make_state_window = partial(BufferedStatesAndWindows, core="rust", chunk=2, interval=4, overlap=True)
