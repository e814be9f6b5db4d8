"""Faults in pins."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.kv_tier.contract import Key, LoadPlan
from kvlockstep.reference.kv_tier.tier import KVTier


@fault("tier-pin-leaks", law="quiescence", seen=("LMCache#2785",))
class PinLeaks(KVTier):
    """A pin is dropped by a load alone: one behind which nothing is loaded stays for ever."""

    def release(self, owner: str) -> None:
        pass


@fault("tier-release-drops-all", law="tier_accounting", seen=("mutant",))
class ReleaseDropsAll(KVTier):
    """The release of one owner drops the pins of every other one on the same chunks."""

    def release(self, owner: str) -> None:
        keys = {key for of, key in self._pins if of == owner}
        self._pins = {(of, key) for of, key in self._pins if key not in keys}


@fault("tier-load-keeps-pin", law="tier_accounting", seen=("shape: a pin that nobody takes over",))
class LoadKeepsPin(KVTier):
    """A load does not take over the pin of its owner."""

    def load(self, keys: Sequence[Key], owner: str) -> LoadPlan | None:
        pins = set(self._pins)
        plan = super().load(keys, owner)
        self._pins = pins
        return plan
