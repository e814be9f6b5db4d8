"""Traits that cannot be true together, whatever the target does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvlockstep.reference.kv_manager.groups.contract import one_full
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits

NAME_TIERS = ("fails", "loses", "silent_tiers")


def contradictions(traits: type, declared: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each; `declared` are traits of these of any contract, by name."""
    found = [*_unknown_tiers(declared), *_unknown_pools(declared)]
    return [*found, *_unscheduled(declared)] if issubclass(traits, SchedulerTraits) else found


def _unknown_tiers(declared: Mapping[str, Any]) -> Iterator[str]:
    tiers = declared.get("tiers") or {}
    for trait in NAME_TIERS if tiers else ():
        value = declared.get(trait)
        names: Iterable[str] = () if value is None or isinstance(value, str | bool) else value
        unknown = [name for name in names if name not in tiers]
        if unknown:
            yield f"the trait {trait} names {unknown[0]!r}, which is none of `tiers`"


def _unknown_pools(declared: Mapping[str, Any]) -> Iterator[str]:
    pools, groups = declared.get("pools"), declared.get("groups", ())
    unknown = sorted({group.pool for group in groups} - set(pools or ()))
    if pools and not groups:
        yield "pools are for groups, and there are none: `total` counts the slots of the pool"
    elif pools and unknown:
        yield f"groups name the pool {unknown[0]!r}, which `pools` lacks"
    elif len(unknown) > 1:
        yield f"groups name several pools, {', '.join(map(repr, unknown))}: `pools` has to say how many blocks each has"


def _unscheduled(declared: Mapping[str, Any]) -> Iterator[str]:
    groups = declared.get("groups", ())
    if one_full(groups):
        return
    if declared.get("max_length") is None:
        yield "with groups, max_length has to say how many tokens a request may have"
    if any(group.kind == "rolling" for group in groups):
        yield "a group of a kv_scheduler may not be rolling: only kv_manager has such groups"
