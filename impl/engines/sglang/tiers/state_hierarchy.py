"""kv_scheduler with groups and transfers on SGLang's Scheduler (0.5.23): Mamba states over the host tier, on CPU.

The scheduler is driven as in state_scheduler.py and hierarchy.py, with an extra buffer and under overlap, which is the
engine's default. A node's attention and the state at its end are stored together, or the state by itself. A load brings
a state twice: to the tree, and to the slot of the request that goes on from it. Both pools have their own on the host;
here these are one tier, whose first units are pages of full attention, and the others have one state each.
Source: sglang/srt/mem_cache/unified_cache/components/mamba.py, beside those of state_scheduler.py and hierarchy.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang import state_scheduler
from kvlockstep.impl.engines.sglang.states import FULL, STATES
from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import SidedHierarchy
from kvlockstep.impl.engines.sglang.tiers.states import WithStates
from kvlockstep.impl.engines.sglang.tiers.window_hierarchy import UnparkedScheduler
from kvlockstep.impl.engines.sglang.tiers.windows import WithWindow


class DrainingStateScheduler(DrainingScheduler, state_scheduler.SwappingScheduler):
    """Without sglang-state-overwritten and sglang-scheduler-aborted-under-store."""


class StateHierarchy(WithStates, SidedHierarchy, state_scheduler.SGLangStateScheduler):
    """A Scheduler over full attention and states, with a host tier of nearly as much room for both.

    With `repaired` an admission that finds no state waits for the stores that keep them, a request that runs leaves its
    checkpoint out, and one whose load is refused goes on from a state.
    """

    _kind: Callable[..., Any] = DrainingStateScheduler

    def __init__(self, *given: Any, repaired: bool = True, **options: Any) -> None:
        super().__init__(*given, **options)
        if repaired:
            self._repair()

    def limbo(self, pool: str = FULL) -> int:
        if pool == STATES:
            return self._states_in_limbo(1)
        kept = {slot // self.block_size for slot in self._host.kept()}
        return len(kept.difference(*(self.held(rid, 0) or () for rid in self._live())))

    def _states_in_limbo(self, group: int) -> int:
        return len(self._kept_states().difference(*(self.held(rid, group) or () for rid in self._live())))


class UnparkedStateScheduler(UnparkedScheduler, DrainingStateScheduler):
    """Without sglang-window-parked-under-store as well."""


class StateWindowHierarchy(WithWindow, StateHierarchy, state_scheduler.SGLangStateWindowScheduler):
    """A Scheduler over full attention, a window and states, with a host tier."""

    _kind: Callable[..., Any] = UnparkedStateScheduler

    def limbo(self, pool: str = FULL) -> int:
        return self._states_in_limbo(2) if pool == STATES else self._in_limbo(pool, self._live())


make = partial(StateHierarchy, core="rust", chunk=2, interval=4, overlap=True)
make_back = partial(make, write_policy="write_back")
make_unrepaired = partial(make, repaired=False)
make_back_unrepaired = partial(make_back, repaired=False)
make_window = partial(StateWindowHierarchy, core="rust", chunk=2, interval=4, overlap=True)
