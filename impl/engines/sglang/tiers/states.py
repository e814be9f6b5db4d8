"""kv_manager with groups and a tier on SGLang's prefix tree (0.5.23): Mamba states over the host tier.

The calls are those of tiered.py here and of states.py of the engine. The state at the end of a node is stored with its
attention, or by itself. A load brings it twice: to the tree, and to the slot of the request that goes on from it.
Source: sglang/srt/mem_cache/unified_cache/components/mamba.py, beside those of tiered.py, sides.py and states.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvlockstep.impl.engines.sglang.states import (
    FULL,
    SLOTS_PER_REQUEST,
    STATE,
    STATES,
    SGLangStateManager,
    sglang,
)
from kvlockstep.impl.engines.sglang.tiers.hicache import controllers
from kvlockstep.impl.engines.sglang.tiers.sides import Side, SidedManager, WithSides


class WithStates(WithSides):
    """A target whose host tier keeps states, and its repaired tree."""

    _rows: Any

    def _make_sides(self) -> list[Side]:
        states, pool = self._rows.mamba_allocator, controllers.PoolName.MAMBA
        given = self.pools[STATES], 1, states, self._evict_states
        return [*super()._make_sides(), Side(STATE, pool, "_mamba_pool_host", STATES, *given)]

    def _evict_states(self, slots: int) -> None:
        """As `_evict_mamba_for_device_alloc` of hybrid_pool_assembler.py, which cannot be imported without a device."""
        missing = slots - self._rows.mamba_allocator.schedulable_available_size()
        if missing > 0:
            self._tree.evict_for_alloc(sglang.EvictParams(mamba_num=missing))

    def _kept_states(self) -> set[int]:
        """The states at the ends of the paths that transfers keep."""
        ends = [*self._tree.ongoing_write_through, *self._tree.ongoing_load_back]
        found = (self._tree.tree_core.get_component_device_value(end, STATE) for end in ends)
        return {int(slot) for states in found if states is not None for slot in states.tolist()}

    def _repair(self) -> None:
        """Without sglang-state-under-store and sglang-state-load-refused."""
        component, tree = self._tree.components[STATE], self._tree
        evict = tree.evict_for_alloc
        component.prepare_for_caching_req = partial(self._prepare, component.prepare_for_caching_req, evict)
        tree.evict_for_alloc = partial(self._evict, evict)
        tree.init_load_back = partial(self._load_back, component, tree.init_load_back)

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

    def _load_back(self, component: Any, load_back: Callable[..., Any], params: Any) -> Any:
        """As the engine does; without a load the request goes on from the state behind what the device has."""
        loaded, req = load_back(params), params.req
        if req.prefix_len and not req.kv.holds_mamba:
            component._alloc_request_state_slot(req)
            req.kv.mamba_cow_src_index = self._tree.tree_core.get_component_device_value(req.last_node, STATE)
            req.kv.mamba_needs_clear = False
        return loaded


class _StateManager(SGLangStateManager):
    """Is made with a page size, as the others are, which is one token."""

    def __init__(self, slots: int, _page: int, core: str, running: int, **options: Any) -> None:
        super().__init__(slots, core, running, **options)


class TieredStateManager(WithStates, SidedManager, _StateManager):
    """Full attention and states for `running` requests at a time, with a host tier.

    An admission is refused while stores keep the states that it needs.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._repair()

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        short = self.avail(STATES) < SLOTS_PER_REQUEST
        return None if short else super().admit(rid, tokens, extra_key, n)

    def limbo(self, pool: str = FULL) -> int:
        return len(self._kept_states()) if pool == STATES else super().limbo()


def _make(core: str, write_policy: str, blocks: int, block_size: int) -> TieredStateManager:
    """The slots are those of `blocks` blocks."""
    return TieredStateManager(blocks * block_size, 1, core, write_policy, running=max(2, blocks // 2))


make_through = partial(_make, "python", "write_through")
make_through_rust = partial(_make, "rust", "write_through")
make_back_rust = partial(_make, "rust", "write_back")
