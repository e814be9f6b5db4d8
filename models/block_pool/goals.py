"""Goals of block_pool: events that a run must meet before it says anything."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.block_pool import Held, View, prefix_in
from kvlockstep.properties.law import Refused, Step
from kvlockstep.reference.block_pool.contract import HashFunction, Prefix

GOALS = (
    Goal("hit", "a lookup finds every full block of the request"),
    Goal("partial_hit", "a lookup finds some blocks of the request"),
    Goal("miss", "a lookup finds nothing, though something is cached"),
    Goal("limited", "a lookup stops at its limit with the next block cached"),
    Goal("rest", "a request ends one token after a block boundary"),
    Goal("short", "a request ends one token before a block boundary"),
    Goal("whole", "a request ends at a block boundary"),
    Goal("nothing_asked", "a request without tokens is looked up, or an operation is given no blocks"),
    Goal("exhausted", "more blocks are asked for than are free"),
    Goal("all_taken", "the last free block is handed out"),
    Goal("eviction", "a block that caches something is handed out"),
    Goal("parent_evicted", "a block is handed out while one that builds on it stays cached"),
    Goal("hole", "a lookup ends at a block that is not cached, though the next one is"),
    Goal("parent_returns", "a prefix is cached again while a longer one stayed cached"),
    Goal("from_the_middle", "a hit takes a block out of the middle of the queue"),
    Goal("shared", "a block has two holders"),
    Goal("kept", "a block is freed by one of its holders"),
    Goal("order", "several cached blocks are freed in one call"),
    Goal("mixed", "cached and uncached blocks are freed in one call"),
    Goal("twins", "two blocks (twins) cache the same prefix"),
    Goal("first_twin_goes", "the twin that was cached first is handed out"),
    Goal("second_twin_goes", "the twin that was cached later is handed out"),
    Goal("second_twin_touched", "the free twin that was cached later is touched"),
    Goal("collision", "a lookup meets a different cached prefix with the same hash"),
    Goal("other_parent", "a lookup ends where its next block is cached, but behind another parent"),
    Goal("other_extra_key", "a lookup ends where its tokens are cached, but under another extra key"),
    Goal("grown", "a request that grew since its last operation is looked up or cached"),
    Goal("reset", "a pool with something cached is reset"),
    Goal("in_use", "a reset is asked for while a block is held"),
    Goal("repeated", "one block is freed or touched twice in one call"),
    Goal("double_free", "a free block is freed"),
    Goal("foreign", "a call names a block that is not in the pool"),
    Goal("stale_hit", "a free block that caches nothing is touched"),
    Goal("already_cached", "a cached block is cached again"),
    Goal("cache_free", "a free block is cached"),
    Goal("cache_behind_hole", "a block is cached behind one that does not cache the prefix before it"),
    Goal("bad_argument", "an argument is negative, too long or not 32 bits wide"),
)


def reached(step: Step[View, Held], grown: bool, hash_function: HashFunction | None) -> Iterator[str]:
    """The goals that a step meets. `grown`: its request grew since its last operation."""
    args = step.op.args
    if isinstance(step.outcome, Refused):
        yield _refusal(step)
        return
    if grown and "request" in args:
        yield "grown"
    match step.op.name:
        case "allocate":
            yield from _allocation(step)
        case "touch":
            yield from _touch(step)
        case "free":
            yield from _free(step)
        case "cache_full_blocks":
            yield from _caching(step)
        case "find_longest_prefix":
            yield from _lookup(step)
            if hash_function is not None and _collides(step, hash_function):
                yield "collision"
        case "reset" if step.before.entries:
            yield "reset"


def _refusal(step: Step[View, Held]) -> str:
    match step.op.name, step.outcome.error:
        case _, "UnknownSlot":
            return "foreign"
        case "allocate", "OutOfSlots":
            return "exhausted"
        case "reset", _:
            return "in_use"
        case "touch" | "free", "InvalidArgument":
            return "repeated"
        case "touch", _:
            return "stale_hit"
        case "free", _:
            return "double_free"
        case _, "AlreadyCached":
            return "already_cached"
        case _, "NotHeld":
            return "cache_free"
        case _, "NotCached":
            return "cache_behind_hole"
    return "bad_argument"


def _allocation(step: Step[View, Held]) -> Iterator[str]:
    before, after = step.before.entries, step.after.entries
    if not step.outcome:
        yield "nothing_asked"
    elif not step.after.queue:
        yield "all_taken"
    for block in step.outcome:
        prefix = step.held_before.cached.get(block)
        if prefix is None:
            continue
        yield "eviction"
        if prefix in after:
            yield "first_twin_goes" if before[prefix][0] == block else "second_twin_goes"
        elif any(extends(longer, prefix) for longer in after):
            yield "parent_evicted"


def _touch(step: Step[View, Held]) -> Iterator[str]:
    queue, blocks = step.before.queue, step.op.args["blocks"]
    if not blocks:
        yield "nothing_asked"
    if any(block in queue[1:-1] for block in blocks):
        yield "from_the_middle"
    if any(step.held.holders[block] > 1 for block in blocks):
        yield "shared"
    for block in blocks:
        prefix = step.held.cached.get(block)
        first = block if prefix is None else step.before.entries.get(prefix, [block])[0]
        if first != block and first in queue and block in queue:
            yield "second_twin_touched"


def _free(step: Step[View, Held]) -> Iterator[str]:
    blocks = step.op.args["blocks"]
    idle = [block in step.held.cached for block in blocks if block not in step.held.holders]
    if not blocks:
        yield "nothing_asked"
    if len(idle) < len(blocks):
        yield "kept"
    if sum(idle) > 1:
        yield "order"
    if any(idle) and not all(idle):
        yield "mixed"


def _caching(step: Step[View, Held]) -> Iterator[str]:
    cached, full = step.op.args["cached"], step.op.args["full"]
    if cached == full:
        yield "nothing_asked"
    for blocks in range(cached + 1, full + 1):
        prefix = prefix_in(step, blocks)
        if prefix in step.before.entries:
            yield "twins"
        elif any(extends(longer, prefix) for longer in step.before.entries):
            yield "parent_returns"


def _lookup(step: Step[View, Held]) -> Iterator[str]:
    args, entries, size = step.op.args, step.after.entries, step.held.block_size
    found, length, limit = len(step.outcome), len(args["tokens"]), args["limit"]
    blocks, rest = divmod(length, size)
    yield "nothing_asked" if not length else "whole" if not rest else "rest" if rest == 1 else "short"
    if length and size <= 2:
        yield from ("rest", "short") if rest == size - 1 else ()
    if not blocks or not entries:
        return
    if limit is None:
        yield "hit" if found == blocks else "partial_hit" if found else "miss"
    if found == blocks:
        return
    missed = prefix_in(step, found + 1)
    if missed in entries:
        yield "limited"
        return
    if any(prefix_in(step, i) in entries for i in range(found + 2, blocks + 1)):
        yield "hole"
    others = [other for other in entries if len(other.tokens) == len(missed.tokens)]
    if any(other.tokens == missed.tokens for other in others):
        yield "other_extra_key"
    elif found and any(other.tokens[-size:] == missed.tokens[-size:] for other in others):
        yield "other_parent"


def _collides(step: Step[View, Held], hash_function: HashFunction) -> bool:
    size = step.held.block_size
    known = {_hash_of(hash_function, prefix, size): prefix for prefix in step.after.entries}
    blocks = min(len(step.outcome) + 1, len(step.op.args["tokens"]) // size)
    asked = [prefix_in(step, i + 1) for i in range(blocks)]
    return any(known.get(_hash_of(hash_function, prefix, size), prefix) != prefix for prefix in asked)


@functools.lru_cache(maxsize=4_096)
def _hash_of(hash_function: HashFunction, prefix: Prefix, size: int) -> int:
    key = 0
    for i, extra_key in enumerate(prefix.extra_keys):
        key = hash_function(key, prefix.tokens[i * size : (i + 1) * size], extra_key)
    return key


def extends(longer: Prefix, prefix: Prefix) -> bool:
    """True if the first prefix is the second one and more blocks."""
    blocks = len(prefix.extra_keys)
    return (
        len(longer.extra_keys) > blocks
        and longer.tokens[: len(prefix.tokens)] == prefix.tokens
        and longer.extra_keys[:blocks] == prefix.extra_keys
    )
