"""Goals of radix_cache: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.radix_cache import Held, Prefix, View, evicted, path

GOALS = (
    Goal("hit", "all of a sequence is cached"),
    Goal("partial_hit", "a part of a sequence is cached"),
    Goal("miss", "nothing of a sequence is cached, though there are entries"),
    Goal("unaligned", "a matched sequence does not fill its last page"),
    Goal("full_prompt_hit", "a request whose whole prompt is cached matches all but its last page"),
    Goal("split", "a match ends inside pages that were cached in one call"),
    Goal("split_locked", "a match ends inside pages that another handle has locked"),
    Goal("unlock_after_split", "a handle is unlocked after its pages were split"),
    Goal("branch", "an insert branches off inside pages that were cached in one call"),
    Goal("shared_lock", "an entry is locked through two handles"),
    Goal("locked_twice", "a handle is locked twice"),
    Goal("eviction", "pages are evicted on demand"),
    Goal("eviction_pressure", "an allocation evicts"),
    Goal("partial_eviction", "an eviction leaves some of the pages that were cached in one call"),
    Goal("cascade", "an eviction continues with the parent of the pages it evicted"),
    Goal("lock_protects", "pages are evicted while less recently used ones are locked"),
    Goal("refused_eviction", "evict asks for more pages than can be evicted"),
    Goal("refused_allocation", "allocate asks for more slots than are free or evictable"),
    Goal("cached_again", "a prefix that was evicted is cached again"),
    Goal("duplicates", "a finished request has computed pages that were cached meanwhile"),
    Goal("duplicates_behind_match", "a finished request has such duplicates behind the prefix that it had matched"),
    Goal("rest", "the last page of a finished request is not full"),
    Goal("published", "a running request caches its computed pages"),
    Goal("published_duplicates", "a running request is given other slots for pages that it has computed"),
    Goal("stale", "a handle is used after all its pages were evicted"),
    Goal("stale_in_part", "a handle is used after its last pages were evicted"),
    Goal("stale_cached_again", "a handle is used after its pages were evicted and cached again"),
    Goal("stale_after_reset", "a handle is used after a reset"),
    Goal("reset_locked", "a reset happens while handles are locked"),
    Goal("double_unlock", "a handle is unlocked more often than locked"),
    Goal("not_locked", "a request with an unlocked handle is cached"),
    Goal("unknown_slot", "a call names a slot that does not exist"),
    Goal("not_held", "a call names a slot twice, or one that the caller does not hold"),
    Goal("malformed", "a call has slots that are not whole pages, or the wrong number of slots or tokens"),
)


class GoalCounter:
    """Counts the goals that each step meets."""

    def __init__(self, met: Counter[str]) -> None:
        self.goals_met = met
        self._split_since: set[str] = set()

    def notice(self, step: Step[View, Held]) -> None:
        """Counts the goals that this step has met."""
        met, name = self.goals_met, step.op.name
        if isinstance(step.outcome, Refused):
            met[_refusal(step)] += 1
            return
        if name == "cache_unfinished":
            self._split_since.discard(step.op.args.get("into") or step.op.args["handle"])
        if name in ("match_prefix", "match_request"):
            self._split_since.discard(step.op.args["handle"])
            self._notice_match(step)
        elif name in ("insert_prefix", "cache_finished", "cache_unfinished"):
            self._notice_caching(step)
        elif name == "lock":
            grip = step.held.grips[step.op.args["handle"]]
            met["locked_twice"] += grip.locks > 1
            met["shared_lock"] += bool(grip.prefix) and step.before.entries[grip.prefix][1] > grip.locks - 1
            self._split_since.discard(step.op.args["handle"])
        elif name == "reset":
            met["reset_locked"] += any(grip.locks for grip in step.held_before.grips.values())
            self._split_since.clear()
        if name in ("unlock", "cache_finished"):
            met["unlock_after_split"] += step.op.args["handle"] in self._split_since
        if gone := evicted(step):
            _notice_eviction(met, step, gone)

    def _notice_match(self, step: Step[View, Held]) -> None:
        met, op, entries, size = self.goals_met, step.op, step.before.entries, step.held.page_size
        tokens, length = tuple(op.args["tokens"]), step.outcome[0]
        asked = len(tokens) - (op.name == "match_request")
        met["unaligned"] += asked % size > 0
        if entries and asked >= size:
            met["hit" if length == asked // size * size else "partial_hit" if length else "miss"] += 1
        if op.name == "match_request":
            met["full_prompt_hit"] += len(tokens) % size == 0 and tokens in entries and length == len(tokens) - size
        if _inside_run(tokens[:length], entries, step.held_before):
            met["split"] += 1
            self._notice_split(step, tokens[:length])

    def _notice_caching(self, step: Step[View, Held]) -> None:
        met, op, size = self.goals_met, step.op, step.held.page_size
        tokens, held = tuple(op.args["tokens"]), step.held_before
        new = [p for p in path(tokens, size) if p not in step.before.entries]
        met["cached_again"] += any(p in held.born for p in new)
        there = len(path(tokens, size)) * size - len(new) * size
        if new and _inside_run(tokens[:there], step.before.entries, held):
            met["branch"] += 1
            self._notice_split(step, tokens[:there])
        matched = len(held.grips[op.args["handle"]].prefix) if op.args["handle"] else 0
        if op.name == "cache_finished":
            met["duplicates"] += there > matched
            met["duplicates_behind_match"] += there > matched > 0
            met["rest"] += len(tokens) % size > 0
        elif op.name == "cache_unfinished":
            met["published"] += bool(new)
            met["published_duplicates"] += there > matched

    def _notice_split(self, step: Step[View, Held], prefix: Prefix) -> None:
        longer = len(prefix) + step.held.page_size
        below = [p for p in step.before.entries if p[: len(prefix)] == prefix and len(p) == longer]
        if any(step.before.entries[p][1] for p in below):
            self.goals_met["split_locked"] += 1
        for name, grip in step.held_before.grips.items():
            if grip.locks and len(grip.prefix) > len(prefix) and grip.prefix[: len(prefix)] == prefix:
                self._split_since.add(name)


def _inside_run(prefix: Prefix, entries: Mapping[Prefix, Any], held: Held) -> bool:
    """True if the prefix ends between two pages that were cached in one call and not split there since."""
    size = held.page_size
    below = [p for p in entries if p[:-size] == prefix]
    return bool(prefix) and len(below) == 1 and held.born[below[0]] == held.born[prefix]


def _notice_eviction(met: Counter[str], step: Step[View, Held], gone: Sequence[Prefix]) -> None:
    held, size = step.held_before, step.held.page_size
    after = step.after.entries
    met["eviction" if step.op.name == "evict" else "eviction_pressure"] += 1
    met["partial_eviction"] += any(p[:-size] in after and held.born[p[:-size]] == held.born[p] for p in gone)
    met["cascade"] += any(p[:-size] in gone and held.born[p[:-size]] != held.born[p] for p in gone)
    newest = max(held.used[p] for p in gone)
    met["lock_protects"] += any(locks and held.used[p] < newest for p, (_, locks) in after.items())


def _refusal(step: Step[View, Held]) -> str:
    error, name, held = step.outcome.error, step.op.name, step.held_before
    grip = held.grips.get(step.op.args.get("handle", ""))
    if error == "StaleHandle" and grip is not None:
        entries, size = step.before.entries, held.page_size
        if grip.epoch != held.resets:
            return "stale_after_reset"
        if grip.prefix in entries:
            return "stale_cached_again"
        return "stale_in_part" if any(p in entries for p in path(grip.prefix, size)) else "stale"
    named = {
        ("OutOfSlots", "evict"): "refused_eviction",
        ("OutOfSlots", "allocate"): "refused_allocation",
        ("NotLocked", "unlock"): "double_unlock",
        ("NotLocked", "cache_finished"): "not_locked",
        ("NotLocked", "cache_unfinished"): "not_locked",
    }
    single = {"UnknownSlot": "unknown_slot", "NotHeld": "not_held", "InvalidArgument": "malformed"}
    return named.get((error, name)) or single.get(error, error)
