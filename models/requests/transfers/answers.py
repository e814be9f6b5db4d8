"""What a target with tiers returns about its transfers, in the form that the judge uses."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.taking import taken
from kvlockstep.models.requests.adapter import answered
from kvlockstep.reference.kv.transfers import Transfer


def transfers_of(transfers: Callable[[], Any]) -> list[Transfer]:
    """The transfers that were submitted since the last time. Raises Divergence for anything else."""
    found = answered(transfers)
    if type(found) is list and not found:
        return []  # as after most operations
    return taken(lambda: [_transfer(one) for one in bounded(found)], found, transfers, "transfers")


def ids_of(waits: Callable[[], Any]) -> list[Hashable]:
    """The ids of transfers that a method returned. Raises Divergence for anything else."""
    found = answered(waits)
    return taken(lambda: _hashable(found), found, waits, "ids of transfers")


def _transfer(found: Any) -> Transfer:
    one = Transfer(*bounded(found))
    _hashable((one.id, one.kind, one.tier, one.source))
    return one._replace(pairs=list(bounded(one.pairs)), rids=_hashable(one.rids), after=_hashable(one.after))


def _hashable(found: Any) -> list[Any]:
    """The elements. Raises TypeError if one of them has no hash."""
    elements = list(bounded(found))
    set(elements)
    return elements
