"""A note on tiers that are as large as the pool: such a tier seldom evicts, so a check sees few of its races."""

from __future__ import annotations

from typing import Any

from kvlockstep.core.capture import quiet
from kvlockstep.core.trace import TARGETS_BY_ID
from kvlockstep.models.requests.adapter import read_traits
from kvlockstep.properties.law import counted
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.targets.registry import Target, built_in
from kvlockstep.targets.trying import attempt_in_time


def large_tiers(target: Target, traits: Any) -> str:
    """One sentence if no tier of a target of yours has fewer units than its pool has blocks, else "".

    `traits` are those of some instance; the sizes are looked at where the contract's probe makes one.
    """
    # Who wrote a target that comes with the package has chosen its sizes, and docs/transfers.md gives them.
    ours = target.name.startswith(TARGETS_BY_ID) or target.name.partition("@")[0] in built_in(target.contract)
    if ours or not getattr(traits, "tiers", None):
        return ""
    sizes = CONTRACTS[target.contract].probe.values()
    with quiet():
        found = attempt_in_time(lambda: read_traits(target.factory(*sizes), type(traits))).answer
    if found is None or not found.tiers:
        return ""
    blocks, units = _blocks(found), min(found.tiers.values())
    if units < blocks:
        return ""
    names = ", ".join(found.tiers)
    return (
        f"with {counted(blocks, 'block')} in the pool the tier {names} has {counted(units, 'unit')}: a tier so large "
        "seldom evicts, which hides races with evictions; declare fewer units, half as many as blocks is good "
        "(docs/transfers.md)"
    )


def _blocks(traits: Any) -> int:
    """The blocks of all pools: a unit holds one of any."""
    if traits.pools:
        return sum(traits.pools.values())
    size: int = traits.groups[0].block_size if traits.groups else traits.block_size
    return int(traits.total) // size
