"""Goals of kv_tier: what must happen before a run says anything."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.models.kv_tier.books import Books, Plan
from kvlockstep.properties.kv_tier import Fate, Planned
from kvlockstep.reference.kv_tier.contract import MISS, Key

GOALS = (
    Goal("hit", "a lookup answers hit"),
    Goal("miss", "a lookup answers miss"),
    Goal("pending", "a lookup answers pending", when="pending_visible"),
    Goal("extra_key", "a key misses whose hash is stored with another extra key", when="extra_key"),
    Goal("stored_already", "a store is offered a chunk that is there"),
    Goal("in_flight_already", "a store is offered a chunk that another store is writing"),
    Goal("eviction", "a store evicts"),
    Goal("several_evicted", "a store evicts several chunks"),
    Goal("returned", "a chunk is stored again after its eviction"),
    Goal("missed_after_eviction", "an evicted chunk is looked up"),
    Goal("refused", "a store is refused"),
    Goal("refused_by_one", "a store is refused that lacks one unit"),
    Goal("load_behind_store", "a load begins while a store is in flight"),
    Goal("several_loaded", "a load takes several chunks"),
    Goal("two_readers", "two loads in flight read one chunk"),
    Goal("reader_protects", "a store evicts while a load is in flight"),
    Goal("pin_protects", "a store evicts while a chunk is pinned", when="can_pin"),
    Goal("pinned_twice", "a chunk is pinned by two owners", when="can_pin"),
    Goal("pin_taken_over", "an owner loads a chunk that it has pinned", when="can_pin"),
    Goal("out_of_order", "a plan is completed before an older one"),
    Goal("store_failed", "a store fails"),
    Goal("load_failed", "a load fails"),
    Goal("missed_after_failure", "a chunk whose store failed is looked up"),
    Goal("stored_after_failure", "a chunk whose store failed is stored again"),
    Goal("completed_again", "a plan is completed that has ended"),
    Goal("released", "an owner with pins is released", when="can_pin"),
    Goal("released_nothing", "an owner without pins is released"),
    Goal("reset", "the tier is reset with chunks in it", when="can_reset"),
    Goal("missed_after_reset", "a chunk of before a reset is looked up", when="can_reset"),
    Goal("reset_in_flight", "the tier is reset with a plan in flight", when="reset_in_flight"),
    Goal("completed_after_reset", "a plan of before a reset is completed", when="reset_in_flight"),
    Goal("damage_lose", "the storage loses a chunk", when="can_damage"),
    Goal("damage_truncate", "the storage truncates a chunk", when="can_damage"),
    Goal("damage_repeat", "the storage has another chunk in the place of one", when="can_damage"),
    Goal("damage_found", "a load finds a damaged chunk", when="can_damage"),
    Goal("reopened", "the process ends with chunks stored", when="can_reopen"),
    Goal("reopened_in_flight", "the process ends with some bytes of a store written", when="can_reopen"),
    Goal("missed_after_crash", "a chunk is looked up that was in flight at a crash", when="can_reopen"),
)


def unreachable(traits: Any) -> set[str]:
    """The goals that depend on a trait which is not declared."""
    return {goal.id for goal in GOALS if goal.when is not None and not getattr(traits, goal.when)}


def notice_lookup(reach: Counter[str], books: Books, key: Key, answer: str) -> None:
    """Counts the goals that a lookup has reached."""
    fate = books.fate(key)
    reach[answer] += 1
    reach["extra_key"] += answer == MISS and any(other.hash == key.hash for other in books.chunks)
    reach["missed_after_failure"] += fate is Fate.FAILED
    reach["missed_after_eviction"] += fate is Fate.EVICTED
    reach["missed_after_reset"] += fate is Fate.RESET
    reach["missed_after_crash"] += fate is Fate.CUT


def notice_store(reach: Counter[str], books: Books, planned: Planned) -> None:
    """Counts the goals that a store has reached, before the books know of it."""
    reach["eviction"] += bool(planned.evicted)
    reach["several_evicted"] += len(planned.evicted) > 1
    reach["returned"] += any(books.fate(key) is Fate.EVICTED for key, _ in planned.units)
    reach["stored_after_failure"] += any(books.fate(key) is Fate.FAILED for key, _ in planned.units)
    if planned.evicted:
        reach["reader_protects"] += any(plan.loads and plan.units for plan in books.in_flight.values())
        reach["pin_protects"] += bool(books.pins)


def notice_end(reach: Counter[str], books: Books, plan: Plan, ok: bool) -> None:
    """Counts the goals that the end of a plan has reached, before the books know of it."""
    reach["out_of_order"] += plan.number != next(iter(books.in_flight))
    reach["load_failed" if plan.loads else "store_failed"] += not ok
    reach["completed_after_reset"] += plan.forgotten
