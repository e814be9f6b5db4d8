"""What a run on a slot_prefix_cache must have met before it says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.slot_prefix_cache import Held, Prefix, View, common_length, evicted, trimmed

GOALS = (
    Goal("hit", "find answers the whole sequence"),
    Goal("partial_hit", "find answers a part of the sequence"),
    Goal("miss", "find answers a miss with entries cached"),
    Goal("longer_than_slot", "find is asked for more tokens than a slot has"),
    Goal("eviction", "an insert evicts"),
    Goal("deep_eviction", "several entries of one path are evicted at once"),
    Goal("over_capacity", "every leaf is pinned, and the cache stays over its capacity"),
    Goal("crowded_out", "an insert is evicted at once, since everything else is pinned"),
    Goal("pin_protects", "a pinned leaf stays while one used more recently is evicted"),
    Goal("pinned_twice", "an entry has two pins"),
    Goal("refused_pinned", "overwriting a slot is refused since a pinned entry would be lost"),
    Goal("pinned_elsewhere", "the slot of a pinned entry is overwritten, another slot holds it too"),
    Goal("reuse_drops", "in-place reuse drops the longer entries of the slot and keeps shorter ones"),
    Goal("extended", "a longer sequence is inserted into the slot of its prefix"),
    Goal("overwritten", "a sequence that shares nothing is inserted into a slot that held another"),
    Goal("shared", "a prefix is held by two slots"),
    Goal("fallback", "an entry is answered by an older slot after the newest one lost it"),
    Goal("copy", "an entry is copied into another slot"),
    Goal("copy_cuts", "a copy drops entries of its target"),
    Goal("copy_onto_itself", "a copy is asked for into the slot that the entry lies in"),
    Goal("unknown_slot", "a slot that is not there is named"),
    Goal("bad_length", "a sequence that is empty or too long is inserted, or a reuse of negative length asked for"),
    Goal("not_cached", "a prefix that is not cached is pinned or copied"),
    Goal("not_pinned", "a release without a pin is asked for"),
)
REFUSED: dict[Any, str] = {
    ("copy_kv", "InvalidArgument"): "copy_onto_itself",
    "InvalidArgument": "bad_length",
    "UnknownSlot": "unknown_slot",
    "Pinned": "refused_pinned",
    "NotCached": "not_cached",
    "NotPinned": "not_pinned",
}


def notice(reach: Counter[str], step: Step[View, Held], positions: int) -> None:
    """Counts what has happened in this step, in slots of so many positions."""
    args = step.op.args
    if isinstance(step.outcome, Refused):
        reach[REFUSED.get((step.op.name, step.outcome.error)) or REFUSED[step.outcome.error]] += 1
        return
    gone = evicted(step)
    reach["over_capacity"] += len(step.after.entries) > step.held.capacity
    if gone:
        reach["eviction"] += 1
        reach["crowded_out"] += tuple(args["tokens"][:1]) in gone
        reach["deep_eviction"] += any(p[:-1] in gone for p in gone)
        reach["pin_protects"] += _a_pin_protected(step, gone)
    match step.op.name:
        case "find":
            asked, length = len(args["tokens"]), step.outcome.length
            reach["longer_than_slot"] += asked > positions
            kind = "hit" if length == asked else "partial_hit" if length else "miss"
            reach[kind] += bool(asked and step.before.entries)
        case "pin":
            reach["pinned_twice"] += step.held.pins[tuple(args["tokens"])] > 1
        case "insert" | "reuse" | "copy_kv":
            _notice_overwriting(reach, step)


def _notice_overwriting(reach: Counter[str], step: Step[View, Held]) -> None:
    op = step.op
    before, after = step.before.entries, step.after.entries
    slot = op.args["target"] if op.name == "copy_kv" else op.args["slot"]
    old = trimmed(step.held_before.rows, before).get(slot)
    new = step.held.rows.get(slot)
    former: Prefix = old.tokens if old else ()
    kept: Prefix = new.tokens if new else ()
    common = common_length(former, kept)
    lost = [former[:n] for n in range(common + 1, len(former) + 1)]
    reach["pinned_elsewhere"] += any(p in step.held.pins for p in lost)
    if step.op.name != "insert":
        reach["fallback"] += any(p in after and after[p] != before[p] for p in lost)
    match op.name:
        case "insert":
            reach["extended"] += 0 < len(former) == common < len(kept)
            reach["overwritten"] += bool(former) and common == 0
            reach["shared"] += any(r.tokens[0] == kept[0] for s, r in step.held.rows.items() if s != slot)
        case "reuse":
            reach["reuse_drops"] += bool(kept and any(p not in after for p in lost))
        case "copy_kv":
            reach["copy"] += 1
            reach["copy_cuts"] += bool(lost)


def _a_pin_protected(step: Step[View, Held], gone: Sequence[Prefix]) -> bool:
    used = step.held.used
    return any(used[p] < max(used[g] for g in gone) for p in step.held.pins)
