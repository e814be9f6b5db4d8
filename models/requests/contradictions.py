"""Traits that cannot be true together, whatever the target does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits

NAME_TIERS = ("fails", "loses", "silent_tiers")


def contradictions(traits: Any) -> list[str]:
    """Returns a sentence for each; `traits` are those of any contract."""
    return [*_unknown_tiers(traits), *_unknown_pools(traits), *_unscheduled(traits)]


def _unknown_tiers(traits: Any) -> Iterator[str]:
    tiers = getattr(traits, "tiers", None) or {}
    for trait in NAME_TIERS if tiers else ():
        value = getattr(traits, trait, None)
        names: Iterable[str] = () if value is None or isinstance(value, str | bool) else value
        unknown = [name for name in names if name not in tiers]
        if unknown:
            yield f"the trait {trait} names {unknown[0]!r}, which is none of `tiers`"


def _unknown_pools(traits: Any) -> Iterator[str]:
    pools = getattr(traits, "pools", None)
    unknown = sorted({group.pool for group in getattr(traits, "groups", ())} - set(pools or ()))
    if pools and not traits.groups:
        yield "pools are for groups, and there are none: `total` counts the slots of the pool"
    elif pools and unknown:
        yield f"groups name the pool {unknown[0]!r}, which `pools` lacks"
    elif len(unknown) > 1:
        yield f"groups name several pools, {', '.join(map(repr, unknown))}: `pools` has to say how many blocks each has"


def _unscheduled(traits: Any) -> Iterator[str]:
    if not isinstance(traits, SchedulerTraits) or one_full(traits.groups):
        return
    if traits.max_length is None:
        yield "with groups, max_length has to say how many tokens a request may have"
    if any(group.kind == "rolling" for group in traits.groups):
        yield "a group of a kv_scheduler may not be rolling: only kv_manager has such groups"
