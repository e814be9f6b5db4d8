"""Goals of slot_prefix_cache: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.slot_prefix_cache import Held, Prefix, View, common_length, evicted, trimmed

GOALS = (
    Goal("hit", "find returns the whole sequence"),
    Goal("partial_hit", "find returns a part of the sequence"),
    Goal("miss", "find returns a miss though there are entries"),
    Goal("longer_than_slot", "find is asked for more tokens than a slot has"),
    Goal("eviction", "an insert evicts"),
    Goal("deep_eviction", "one operation evicts several entries of one path"),
    Goal("over_capacity", "every leaf is pinned, and the cache stays over its capacity"),
    Goal("crowded_out", "an insert is evicted immediately, since everything else is pinned"),
    Goal("pin_protects", "a pinned leaf stays while one used more recently is evicted"),
    Goal("pinned_twice", "an entry has two pins"),
    Goal("refused_pinned", "overwriting a slot is refused, since a pinned entry would be lost"),
    Goal("pinned_elsewhere", "the slot of a pinned entry is overwritten while another slot holds it too"),
    Goal("reuse_drops", "in-place reuse drops the longer entries of the slot and keeps shorter ones"),
    Goal("extended", "a longer sequence is inserted into the slot of its prefix"),
    Goal("overwritten", "a sequence that shares nothing is inserted into a slot that held another"),
    Goal("shared", "a prefix is held by two slots"),
    Goal("fallback", "an entry falls back to an older slot after the newest one lost it"),
    Goal("copy", "an entry is copied into another slot"),
    Goal("copy_cuts", "a copy drops entries of its target"),
    Goal("copy_onto_itself", "an entry is copied into its own slot"),
    Goal("unknown_slot", "a call names a slot that does not exist"),
    Goal("bad_length", "insert is called with an empty or too long sequence, or reuse with a negative length"),
    Goal("not_cached", "a prefix that is not cached is pinned or copied"),
    Goal("not_pinned", "an entry without a pin is released"),
)
REFUSED: dict[Any, str] = {
    ("copy_kv", "InvalidArgument"): "copy_onto_itself",
    "InvalidArgument": "bad_length",
    "UnknownSlot": "unknown_slot",
    "Pinned": "refused_pinned",
    "NotCached": "not_cached",
    "NotPinned": "not_pinned",
}


def notice(met: Counter[str], step: Step[View, Held], positions: int) -> None:
    """Counts what has happened in this step, in slots of so many positions."""
    args = step.op.args
    if isinstance(step.outcome, Refused):
        met[REFUSED.get((step.op.name, step.outcome.error)) or REFUSED[step.outcome.error]] += 1
        return
    gone = evicted(step)
    met["over_capacity"] += len(step.after.entries) > step.held.capacity
    if gone:
        met["eviction"] += 1
        met["crowded_out"] += tuple(args["tokens"][:1]) in gone
        met["deep_eviction"] += any(p[:-1] in gone for p in gone)
        met["pin_protects"] += _a_pin_protected(step, gone)
    match step.op.name:
        case "find":
            asked, length = len(args["tokens"]), step.outcome.length
            met["longer_than_slot"] += asked > positions
            kind = "hit" if length == asked else "partial_hit" if length else "miss"
            met[kind] += bool(asked and step.before.entries)
        case "pin":
            met["pinned_twice"] += step.held.pins[tuple(args["tokens"])] > 1
        case "insert" | "reuse" | "copy_kv":
            _notice_overwriting(met, step)


def _notice_overwriting(met: Counter[str], step: Step[View, Held]) -> None:
    op = step.op
    before, after = step.before.entries, step.after.entries
    slot = op.args["target"] if op.name == "copy_kv" else op.args["slot"]
    old = trimmed(step.held_before.rows, before).get(slot)
    new = step.held.rows.get(slot)
    former: Prefix = old.tokens if old else ()
    kept: Prefix = new.tokens if new else ()
    common = common_length(former, kept)
    lost = [former[:n] for n in range(common + 1, len(former) + 1)]
    met["pinned_elsewhere"] += any(p in step.held.pins for p in lost)
    if step.op.name != "insert":
        met["fallback"] += any(p in after and after[p] != before[p] for p in lost)
    match op.name:
        case "insert":
            met["extended"] += 0 < len(former) == common < len(kept)
            met["overwritten"] += bool(former) and common == 0
            met["shared"] += any(r.tokens[0] == kept[0] for s, r in step.held.rows.items() if s != slot)
        case "reuse":
            met["reuse_drops"] += bool(kept and any(p not in after for p in lost))
        case "copy_kv":
            met["copy"] += 1
            met["copy_cuts"] += bool(lost)


def _a_pin_protected(step: Step[View, Held], gone: Sequence[Prefix]) -> bool:
    used = step.held.used
    return any(used[p] < max(used[g] for g in gone) for p in step.held.pins)
