"""Faults in a reset."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_tier.contract import HIT, MISS, Key, StorePlan
from kvlockstep.reference.kv_tier.tier import Chunk, KVTier


@fault("tier-reset-keeps-index", law="reset_complete", seen=("vllm#57727", "sglang#26792"))
class ResetKeepsIndex(KVTier):
    """A reset frees the units and leaves the index, which serves the KV of the weights before."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._left: set[Key] = set()

    def reset(self) -> None:
        self._left = {key for key, chunk in self._chunks.items() if chunk.stored}
        super().reset()

    def store(self, keys: Sequence[Key], owner: str) -> StorePlan | None:
        self._left.difference_update(keys)
        return super().store(keys, owner)

    def lookup(self, key: Key, owner: str) -> Literal["miss", "pending", "hit"]:
        answer = super().lookup(key, owner)
        return HIT if answer == MISS and key in self._left else answer


@fault("tier-reset-reuses", law="pinned", seen=("mutant",))
class ResetReuses(KVTier):
    """A reset frees units that bytes are still on their way to."""

    def reset(self) -> None:
        self._plans.clear()
        self._using.clear()
        super().reset()


@fault("tier-completion-restores", law="tier_accounting", seen=("mutant",))
class CompletionRestores(KVTier):
    """The completion of a store of before a reset puts its chunks back."""

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        for key, unit in {} if done is None or not ok else done.units.items():
            self._chunks.setdefault(key, Chunk(unit))
        super().complete(plan, ok)


@fault("tier-flush-frees-again", law="no_double_free", seen=("sglang#26009",))
class FlushFreesAgain(KVTier):
    """A completion frees a unit of a plan from before a reset, and so does a list the reset left."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self._later: set[int] = set()

    def reset(self) -> None:
        self._later = {unit for unit, plans in self._using.items() if plans}
        super().reset()

    def complete(self, plan: Hashable, ok: bool) -> None:
        done = self._plans.get(plan)
        super().complete(plan, ok)
        for unit in () if done is None else done.units.values():
            if unit in self._later and unit in self._free:
                self._free.append(unit)
                self._later.discard(unit)


@fault("tier-reset-keeps-pins", law="tier_accounting", seen=("mutant",))
class ResetKeepsPins(KVTier):
    """A reset leaves the pins, and a chunk that is stored again under such a key is pinned by nobody."""

    def reset(self) -> None:
        pins = set(self._pins)
        super().reset()
        self._pins = pins
