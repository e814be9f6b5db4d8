"""Answers of a tier in the form that the judge uses. What cannot be taken so is a Divergence of error_contract."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any, TypeVar

from kvlockstep.models.core.bounded import TooMany, bounded, bounded_dict
from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.whole import whole
from kvlockstep.properties.law import ERROR_CONTRACT, Refused
from kvlockstep.reference.kv_tier.contract import AllChunksCleared, ChunkRemoved, ChunkStored, Key

R = TypeVar("R")


def units_of(plan: Any, call: str) -> list[tuple[Key, int]]:
    """The units of a plan that a store or a load has answered, by key."""

    def take() -> list[tuple[Key, int]]:
        hash(plan.id)
        return [(Key(*bounded(key)), whole(unit)) for key, unit in bounded_dict(plan.units).items()]

    return _taken(take, plan, call, "a plan with its units by key")


def evicted_of(plan: Any) -> list[Key]:
    """The keys that a store says it evicted."""
    return _taken(
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

    return _taken(take, event, "events", "an event")


def _taken(take: Callable[[], R], answer: Any, call: str, wanted: str) -> R:
    def attempt() -> R | None:
        try:
            return take()
        except (TypeError, ValueError, AttributeError):
            return None
        except TooMany as error:
            raise Divergence(ERROR_CONTRACT.id, f"{call} answered {error}") from None

    # An iterator or a mapping of the target runs its code.
    found = call_target(attempt, called=f"taking what {call} answered")
    if found is None or isinstance(found, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{call} answered {reprlib.repr(answer)}, not {wanted}")
    return found
