"""kv_scheduler with groups and transfers on SGLang's Scheduler (0.5.23): Mamba states over the host tier, on CPU.

The scheduler is driven as in state_scheduler.py and hierarchy.py, with an extra buffer and under overlap, which is the
engine's default. A node's attention and the state at its end are stored together, or the state by itself. A load brings
a state twice: to the tree, and to the slot of the request that goes on from it. Both pools have their own on the host;
here these are one tier, whose first units are pages of full attention, and the others have one state each.
Source: sglang/srt/mem_cache/unified_cache/components/mamba.py, beside those of state_scheduler.py and hierarchy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang import state_scheduler
from kvlockstep.impl.engines.sglang.states import FULL, STATE, STATES, sglang
from kvlockstep.impl.engines.sglang.tiers.hicache import HOST, controllers
from kvlockstep.impl.engines.sglang.tiers.hierarchy import DrainingScheduler, HierarchicalScheduler
from kvlockstep.impl.engines.sglang.tiers.sides import Side, SidedHostTier
from kvlockstep.reference.kv_scheduler.contract import Batch


class DrainingStateScheduler(DrainingScheduler, state_scheduler.SwappingScheduler):
    """Without sglang-state-overwritten and sglang-scheduler-aborted-under-store."""


class StateHierarchy(HierarchicalScheduler, state_scheduler.SGLangStateScheduler):
    """A Scheduler over full attention and states, with a host tier that has room for as much of both.

    Stores keep states. With `drains` whoever finds none waits for the stores (sglang-state-under-store).
    """

    _host: SidedHostTier

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        kind: Callable[..., Any] = DrainingStateScheduler,
        drains: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(blocks, block_size, budget, running, kind=kind, **options)
        self.tiers = {HOST: self._host.total}
        if drains:
            self._tree.evict_for_alloc = partial(self._evict, self._tree.evict_for_alloc)

    def schedule(self) -> Batch:
        copies = self._host.copies
        # The last results may have waited, and the batch comes behind that.
        waited = list(copies.fence)
        batch = super().schedule()
        copies.fence[:0] = waited
        return batch

    def complete(self, id: Hashable, ok: bool) -> None:
        super().complete(id, ok)
        fence = self._host.copies.fence
        fence[:] = [other for other in fence if other != id]

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

    def _evict(self, evict: Callable[..., Any], params: Any, **options: Any) -> Any:
        """As the engine does, and waits for the stores if too few states are found."""
        states = self._rows.mamba_allocator
        asked = states.available_size() + params.mamba_num
        result = evict(params, **options)
        if params.mamba_num and states.available_size() < asked:
            self._tree.writing_check(write_back=True)
            evict(sglang.EvictParams(num_tokens=0, mamba_num=asked - states.available_size()))
        return result

    def _evict_states(self, slots: int) -> None:
        """As `_evict_mamba_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._rows.mamba_allocator.schedulable_available_size()
        if missing > 0:
            self._tree.evict_for_alloc(sglang.EvictParams(mamba_num=missing))


make = partial(StateHierarchy, core="rust", chunk=2, interval=4, overlap=True)
make_undrained = partial(make, drains=False)
