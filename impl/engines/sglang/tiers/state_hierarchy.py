"""kv_scheduler with groups and transfers on SGLang's Scheduler (0.5.23): Mamba states over the host tier, on CPU.

The scheduler is driven as in state_scheduler.py and hierarchy.py, with an extra buffer and under overlap, which is the
engine's default. A node's attention and the state at its end are stored together, or the state by itself. A load brings
a state twice: to the tree, and to the slot of the request that goes on from it. Both pools have their own on the host;
here these are one tier, whose first units are pages of full attention, and the others have one state each.
Source: sglang/srt/mem_cache/unified_cache/components/mamba.py, beside those of state_scheduler.py and hierarchy.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang import state_scheduler
from kvlockstep.impl.engines.sglang.states import FULL, STATE
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST
from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler, HierarchicalScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import SidedHostTier
from kvlockstep.impl.engines.sglang.tiers.states import WithStates


class DrainingStateScheduler(DrainingScheduler, state_scheduler.SwappingScheduler):
    """Without sglang-state-overwritten and sglang-scheduler-aborted-under-store."""


class StateHierarchy(WithStates, HierarchicalScheduler, state_scheduler.SGLangStateScheduler):
    """A Scheduler over full attention and states, with a host tier that has room for as much of both.

    With `repaired` an admission that finds no state waits for the stores that keep them, a request that runs leaves its
    checkpoint out, and one whose load is refused goes on from a state.
    """

    _host: SidedHostTier

    def __init__(
        self, blocks: int, block_size: int, budget: int, running: int, repaired: bool = True, **options: Any
    ) -> None:
        super().__init__(blocks, block_size, budget, running, kind=DrainingStateScheduler, **options)
        self.tiers = {HOST: self._host.total}
        if repaired:
            self._repair()

    def limbo(self, pool: str = FULL) -> int:
        live = [rid for rid, req in self._reqs.items() if req.kv.holds_kv]
        if pool == FULL:
            kept = {slot // self.block_size for slot in self._host.kept()}
            return len(kept.difference(*(self.held(rid, 0) or () for rid in live)))
        kept = {slot for end in self._ends() for slot in self._state_of(end)}
        return len(kept.difference(*(self.held(rid, 1) or () for rid in live)))

    def _ends(self) -> list[Any]:
        """The nodes that transfers keep, each with its path."""
        return [*self._tree.ongoing_write_through, *self._tree.ongoing_load_back]

    def _state_of(self, node: Any) -> list[int]:
        state = self._tree.tree_core.get_component_device_value(node, STATE)
        return [] if state is None else list(map(int, state.tolist()))

    def _make_host(self, write_policy: str) -> SidedHostTier:
        given = self.pools[FULL], self._make_side(), FULL, self.block_size, write_policy
        return SidedHostTier(self._tree, self._allocator, *given)


make = partial(StateHierarchy, core="rust", chunk=2, interval=4, overlap=True)
make_back = partial(make, write_policy="write_back")
make_unrepaired = partial(make, repaired=False)
make_back_unrepaired = partial(make_back, repaired=False)
