"""Faults of kv_manager with groups and a tier: what is loaded for which group, and stores of what a window has left."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.faulty.tiers import KeyLacksGroup, UnpinnedWindowStores
from kvlockstep.impl.kv_manager.fenced import FencedStates
from kvlockstep.impl.variants import tiers
from kvlockstep.impl.variants.group_loading import LoadsByGroup, LoadsInside, StoresInside
from kvlockstep.reference.kv_manager.groups.geometries import FullAndWindow, StatePool, TieredWindow, TwoPools
from kvlockstep.reference.kv_manager.groups.in_tier import Block, keys_of_hit
from kvlockstep.reference.kv_manager.groups.pool import Key
from kvlockstep.reference.kv_manager.groups.request import Request
from kvlockstep.reference.kv_manager.tier import Load

FULL, WINDOW, STATE = range(3)


class CachesInTier(tiers.HearsAtOnce, StoresInside):
    """The pools keep nothing that no request holds, and nobody waits for stores: traces are short."""

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self.evict_all()

    def poll(self) -> None:
        super().poll()
        self.evict_all()


class LoadsAtOnce(LoadsInside, CachesInTier):
    """Nobody waits for loads either."""

    fails = None


@fault("kv-load-leaves-state", law="state_soundness", seen=("mutant",))
class LeavesState(StatePool, LoadsAtOnce):
    """A load brings the attention blocks of a hit; the block of its state is published, and never filled."""

    def _begin(self, rid: str, load: Load) -> None:
        super()._begin(rid, load)
        parts = zip(load.keys, self._submitted[-1].pairs, strict=True)
        self._submitted[-1] = self._submitted[-1]._replace(pairs=[pair for key, pair in parts if key[0] != STATE])


@fault("kv-load-any-group-hit", law="coverage", seen=("mutant",))
class AnyGroupHit(FullAndWindow, LoadsAtOnce):
    """A hit is as long as the one of full attention, also where the window has nothing in pool or tier."""

    def _store(self, key: Key, block: Block) -> None:
        """A tier that has no time for the first block of a window."""
        if key[0] == FULL or len(key[2]) > self.block_size:
            super()._store(key, block)

    def _longest(self, tokens: list[int], extra_key: int | None) -> tuple[int, list[Key]]:
        for cached in range(len(tokens) - 1, self._lookup(tokens, extra_key), -1):
            keys = keys_of_hit(self, tokens, extra_key, cached)
            found = [key for key in keys if key in self._pool(key[0]).cached or self._tier.find(key) is not None]
            if keys and all(key in found for key in keys if key[0] == FULL):
                return cached, found
        return 0, []


@fault("kv-load-slid-store-unpinned", law="transfer_isolation", seen=("mutant",))
class SlidStoreUnpinned(UnpinnedWindowStores, TieredWindow):
    """A block that a window leaves is given away under its store; only full blocks are pinned."""


@fault("kv-load-failed-group-hit", law="failure_visible", seen=("mutant",))
class FailedGroupHit(FullAndWindow, LoadsByGroup, CachesInTier):
    """A load that fails for one group leaves the other groups as a hit, and the request goes on behind it."""

    def _start_over(self, request: Request) -> None:
        pass


@fault("kv-load-tier-key-lacks-group", law="prefix_soundness", seen=("mutant",))
class TierKeyLacksGroup(FullAndWindow, LoadsAtOnce):
    """The tier knows a block by its tokens alone, so one group's block is loaded as another's."""

    tier_type = KeyLacksGroup


@fault("kv-load-state-of-other-length", law="state_soundness", seen=("Megatron-LM#6416",))
class StateOfOtherLength(StatePool, LoadsAtOnce):
    """The state that is loaded is the one of a shorter prefix, if the tier has one as well."""

    def _begin(self, rid: str, load: Load) -> None:
        units = [self._shorter(key, unit) for key, unit in zip(load.keys, load.units, strict=True)]
        super()._begin(rid, load._replace(units=units))

    def _shorter(self, key: Key, unit: int) -> int:
        g, extra_key, tokens = key
        return (
            self._tier._cached.get((g, extra_key, tokens[: -self.groups[g].block_size]), unit) if g == STATE else unit
        )


@fault("kv-load-abort-frees-state", law="target_owned", seen=("mutant",))
class AbortFreesState(StatePool, CachesInTier):
    """An abort frees the block of a state that a load still writes; only blocks of attention are kept."""

    def _begin(self, rid: str, load: Load) -> None:
        super()._begin(rid, load)
        for block in self._states_of(load):
            self._drop(block)

    def _end_load(self, load: Load, ok: bool) -> None:
        for block in self._states_of(load):
            self._hold(block)
        super()._end_load(load, ok)

    def _states_of(self, load: Load) -> list[Block]:
        return [block for key, block in zip(load.keys, load.blocks, strict=True) if key[0] == STATE]


@fault("kv-load-asks-one-pool", law="error_contract", seen=("mutant",))
class LoadAsksOnePool(TwoPools, LoadsAtOnce):
    """A load asks the first pool for room, and takes blocks of the others without asking."""

    def _fits(self, request: Request, wanted: list[Key], n: int) -> bool:
        return super()._fits(request, [key for key in wanted if key[0] == FULL], n)


@fault("kv-load-failed-keeps-window", law="coverage", seen=("vllm-rbln#1151",))
class FailedKeepsWindow(FullAndWindow, CachesInTier):
    """A request whose load has failed begins in front of it, with the window of its promised hit."""

    def _start_over(self, request: Request) -> None:
        request.computed = self._lookup(request.tokens, request.extra_key)


@fault("kv-load-failed-no-state", law="state_soundness", seen=("sglang#25088",))
class FailedNoState(StatePool, StoresInside):
    """A request whose load has failed goes on behind what the pool has, without the state there."""

    def _start_over(self, request: Request) -> None:
        super()._start_over(request)
        pool, state = self._pool(STATE), request.states[STATE]
        if state is not None and pool.room():
            request.states[STATE] = pool.take()
            pool.drop(state)


@fault("kv-load-fork-unfenced", law="transfer_isolation", seen=("mutant",))
class ForkUnfenced(FencedStates):
    """The worker waits for stores of what a step writes, not of the block that a fork copies a state to."""

    def reset(self) -> None:
        super().reset()
        self._launched = False

    def launch(self) -> None:
        super().launch()
        self._launched = True

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._launched = False

    def waits(self) -> Collection[Hashable]:
        return super().waits() if self._launched else []
