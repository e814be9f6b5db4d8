"""Goals of targets with tiers that both request contracts have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.models.requests.transfers.transfers import Transfers

STORED = (
    Goal("store", "a store lands", "tiers"),
    Goal("load", "a load lands", "tiers"),
    Goal("load_blocks", "a load has several blocks", "loads_several"),
    Goal("part_loaded", "a hit is part cached, part loaded", "tiers"),
    Goal("reordered", "a transfer ends before an older one", "apart"),
    Goal("starved", "three batches are scheduled while a transfer is in flight", "apart"),
    Goal("store_outlives", "a block is being stored that no request holds any more", "stores_apart"),
    Goal("tier_eviction", "a unit of a tier is stored to again", "tiers"),
    Goal("abort_loading", "a request is aborted while it waits for a load", "aborts_loading"),
    Goal("loads_reordered", "a load ends before an older one", "several_loads"),
    Goal("retaken", "a block is written again that is being stored", "frees_under_store"),
    Goal("fenced", "the worker waits for a store", "frees_under_store"),
    Goal("tier_pinned", "all units of a tier are pinned, or being stored to", "pins_most"),
    Goal(
        "load_evicts", "a load takes the block of a victim, and what the victim is stored to was evicted", "writes_back"
    ),
)
FAILED = (
    Goal("store_fails", "a store fails", "stores_fail"),
    Goal("load_fails", "a load fails", "loads_fail"),
    Goal("torn", "a load fails with its first blocks written", "loads_tear"),
)
MOVED = (
    Goal("move", "a move lands", "moves"),
    Goal("moved_load", "a load reads what a move has brought", "moves"),
    Goal("move_fails", "a move fails", "moves_fail"),
    Goal("move_torn", "a move fails with its first blocks written", "moves_tear"),
)
RESET = (
    Goal("reset_in_flight", "a reset comes with a transfer in flight", "resets_in_flight"),
    Goal(
        "step_behind_reset", "a batch runs while a transfer is in flight that a reset has forgotten", "resets_in_flight"
    ),
    Goal("forgotten_end", "a transfer ends that a reset has forgotten", "resets_in_flight"),
)


def reachable(traits: Any, transfers: Transfers | None) -> dict[str, Any]:
    """What these goals depend on, as the traits of a target have it.

    Of `transfers` it counts which kinds were in flight for longer than the call or the batch that waited for them, and
    which may have failed, if that is not the same for all tiers.
    """
    tiers = bool(traits.tiers)
    apart = transfers.apart if transfers is not None else set()
    near = transfers.races.near if transfers is not None else lambda _: False

    def fails(kind: str) -> bool:
        if isinstance(traits.fails, Mapping):
            return transfers is not None and kind in transfers.fallible
        return tiers and traits.fails in ("any", f"{kind}s")

    several = tiers and max(traits.tiers.values()) > 1
    return {
        "loads_several": several,
        "loads_tear": several and fails("load"),
        "apart": tiers and bool(apart),
        "stores_apart": tiers and "store" in apart,
        "stores_fail": fails("store"),
        "loads_fail": fails("load"),
        "moves_fail": traits.moves and (fails("move") if isinstance(traits.fails, Mapping) else bool(traits.fails)),
        "moves_tear": transfers is not None and "move" in transfers.tearable,
        "loses": transfers is not None and transfers.lose_any(),
        "several_loads": near("loads_reordered"),
        "frees_under_store": near("retaken"),
        "pins_most": near("tier_pinned"),
        "writes_back": near("load_evicts"),
        "resets_in_flight": tiers and traits.can_reset and traits.reset_in_flight,
    }
