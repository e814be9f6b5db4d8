"""Answers of a tier in the form that the judge uses. What cannot be taken so is a Divergence of error_contract."""

from __future__ import annotations

from typing import Any

from kvlockstep.models.core.bounded import bounded, bounded_dict
from kvlockstep.models.core.taking import taken
from kvlockstep.models.core.whole import whole
from kvlockstep.reference.kv_tier.contract import AllChunksCleared, ChunkRemoved, ChunkStored, Key


def units_of(plan: Any, call: str) -> list[tuple[Key, int]]:
    """The units of a plan that a store or a load has answered, by key."""

    def take() -> list[tuple[Key, int]]:
        hash(plan.id)
        return [(Key(*bounded(key)), whole(unit)) for key, unit in bounded_dict(plan.units).items()]

    return taken(take, plan, call, "a plan with its units by key")


def evicted_of(plan: Any) -> list[Key]:
    """The keys that a store says it evicted."""
    return taken(
        lambda: [Key(*bounded(key)) for key in bounded(plan.evicted)],
        plan,
        "store",
        "a plan with the keys that it evicted",
    )


def heard_after(heard: set[Key], event: Any) -> set[Key]:
    """The keys that can be hit, by the events so far and one more."""

    def take() -> set[Key]:
        match event:
            case ChunkStored(keys):
                return heard | {Key(*bounded(key)) for key in bounded(keys)}
            case ChunkRemoved(keys):
                return heard - {Key(*bounded(key)) for key in bounded(keys)}
            case AllChunksCleared():
                return set()
        raise ValueError

    return taken(take, event, "events", "an event")
