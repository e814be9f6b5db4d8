"""Goals of targets with tiers that both request contracts have."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvlockstep.models.core.model import Goal

STORED = (
    Goal("store", "a store lands", "tiers"),
    Goal("load", "a load lands", "tiers"),
    Goal("load_blocks", "a load has several blocks", "tiers"),
    Goal("part_loaded", "a hit is part cached, part loaded", "tiers"),
    Goal("reordered", "a transfer ends before an older one", "apart"),
    Goal("starved", "three batches are scheduled while a transfer is in flight", "apart"),
    Goal("store_outlives", "a block is being stored that no request holds any more", "stores_apart"),
    Goal("tier_eviction", "a unit of a tier is stored to again", "tiers"),
    Goal("abort_loading", "a request is aborted while it waits for a load", "aborts_loading"),
)
FAILED = (
    Goal("store_fails", "a store fails", "stores_fail"),
    Goal("load_fails", "a load fails", "loads_fail"),
    Goal("torn", "a load fails with its first blocks written", "loads_fail"),
)
RESET = Goal("reset_in_flight", "a reset comes with a transfer in flight", "resets_in_flight")


def reachable(traits: Any, apart: Collection[str]) -> dict[str, Any]:
    """What these goals depend on, as the traits of a target have it.

    `apart` are the kinds of transfers that were in flight for longer than the call or the batch that waited for them.
    """
    tiers = bool(traits.tiers)
    return {
        "apart": tiers and bool(apart),
        "stores_apart": tiers and "store" in apart,
        "stores_fail": tiers and traits.fails in ("stores", "any"),
        "loads_fail": tiers and traits.fails in ("loads", "any"),
        "resets_in_flight": tiers and traits.can_reset and traits.reset_in_flight,
    }
