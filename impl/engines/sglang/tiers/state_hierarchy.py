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
from kvlockstep.impl.engines.sglang.states import FULL, STATE, STATES, sglang
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, controllers
from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler, HierarchicalScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import Side, SidedHostTier


class DrainingStateScheduler(DrainingScheduler, state_scheduler.SwappingScheduler):
    """Without sglang-state-overwritten and sglang-scheduler-aborted-under-store."""


class StateHierarchy(HierarchicalScheduler, state_scheduler.SGLangStateScheduler):
    """A Scheduler over full attention and states, with a host tier that has room for as much of both.

    Stores keep states. With `repaired` an admission that finds none waits for the stores, and a request that runs
    leaves its checkpoint out (sglang-state-under-store).
    """

    _host: SidedHostTier

    def __init__(
        self, blocks: int, block_size: int, budget: int, running: int, repaired: bool = True, **options: Any
    ) -> None:
        super().__init__(blocks, block_size, budget, running, kind=DrainingStateScheduler, **options)
        self.tiers = {HOST: self._host.total}
        if repaired:
            component, evict = self._tree.components[STATE], self._tree.evict_for_alloc
            component.prepare_for_caching_req = partial(self._prepare, component.prepare_for_caching_req, evict)
            self._tree.evict_for_alloc = partial(self._evict, evict)

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
        states, pool = self._rows.mamba_allocator, controllers.PoolName.MAMBA
        side = Side(STATE, pool, "_mamba_pool_host", STATES, self.pools[STATES], 1, states, self._evict_states)
        pages = self.pools[FULL]
        return SidedHostTier(self._tree, self._allocator, pages, side, FULL, self.block_size, write_policy)

    def _prepare(
        self, prepare: Callable[..., Any], evict: Callable[..., Any], req: Any, is_finished: bool, **more: Any
    ) -> Any:
        """As the engine does, but a request that goes on gives the tree nothing if no state is found for it instead."""
        states = self._rows.mamba_allocator
        if not is_finished and not states.available_size():
            evict(sglang.EvictParams(mamba_num=1))
            if not states.available_size():
                return 0
        return prepare(req=req, is_finished=is_finished, **more)

    def _evict(self, evict: Callable[..., Any], params: Any, **options: Any) -> Any:
        """As the engine does, and waits for the stores if too few states are found."""
        states = self._rows.mamba_allocator
        asked = states.available_size() + params.mamba_num
        result = evict(params, **options)
        if params.mamba_num and states.available_size() < asked:
            self._tree.writing_check(write_back=True)
            evict(sglang.EvictParams(mamba_num=asked - states.available_size()))
        return result

    def _evict_states(self, slots: int) -> None:
        """As `_evict_mamba_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._rows.mamba_allocator.schedulable_available_size()
        if missing > 0:
            self._tree.evict_for_alloc(sglang.EvictParams(mamba_num=missing))


make = partial(StateHierarchy, core="rust", chunk=2, interval=4, overlap=True)
make_unrepaired = partial(make, repaired=False)
