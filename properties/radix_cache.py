"""Laws of radix_cache, over the state that the cache shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of
from kvlockstep.properties.stamps import stamps

Prefix = tuple[int, ...]


class View(NamedTuple):
    """`entries`: prefix to (slots of its last page, locks).

    `free`: slots in the order of allocation; `order`: evictable slots in the order of eviction.
    `answers`: the slots that the last allocations returned, as the returned objects read now.
    """

    entries: dict[Prefix, tuple[tuple[int, ...], int]]
    free: list[int]
    order: list[int]
    sizes: tuple[int, int, int]
    tree: str
    answers: tuple[tuple[int, ...], ...]


class Grip(NamedTuple):
    """A handle that the caller has: its match, its locks, and when its last page was cached (`born`).

    `epoch`: the number of resets before the match.
    """

    prefix: Prefix
    slots: tuple[int, ...]
    locks: int
    born: int
    epoch: int


class Held(NamedTuple):
    """State that follows from the results so far.

    `slots`: those that the caller holds, whole pages. `born` and `used`: when a prefix was cached and last used; they
    keep evicted prefixes. `stamps`: what the caller wrote into each slot. `resets`: their number. No mapping is ever
    changed.
    """

    page_size: int
    total: int
    clock: int
    resets: int
    slots: tuple[int, ...]
    grips: Mapping[str, Grip]
    born: Mapping[Prefix, int]
    used: Mapping[Prefix, int]
    stamps: Mapping[int, int]


def is_live(grip: Grip, entries: Mapping[Prefix, object], held: Held) -> bool:
    """True if everything that the handle names is still cached as it was when it was matched."""
    if not grip.prefix or grip.epoch != held.resets:
        return grip.epoch == held.resets
    return grip.prefix in entries and held.born[grip.prefix] == grip.born


def path(prefix: Prefix, page_size: int) -> list[Prefix]:
    """The prefixes of whole pages, shortest first."""
    return [prefix[:end] for end in range(page_size, len(prefix) + 1, page_size)]


def evicted(step: Step[View, Held]) -> list[Prefix]:
    """Lists the entries that an operation other than reset has removed."""
    return [] if step.op.name == "reset" else [p for p in step.before.entries if p not in step.after.entries]


def answers_match(step: Step[View, Held]) -> bool:
    """True if the outcome is (length, slots) of a match."""
    matches = ("match_prefix", "match_request", "cache_unfinished")
    return step.op.name in matches and not isinstance(step.outcome, Refused)


def _asked(step: Step[View, Held]) -> Prefix:
    tokens = tuple(step.op.args["tokens"])
    return tokens[:-1] if step.op.name == "match_request" else tokens


def _distinct(slots: Iterable[int]) -> int | None:
    """Returns a slot that occurs twice, or None."""
    return next((slot for slot, count in Counter(slots).items() if count > 1), None)


@law("radix_cache", answers=("Megatron-LM#6091", "atlas#373", "sglang#29349"))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing."""
    if isinstance(step.outcome, Refused) and step.before != step.after:
        return f"the operation was refused, but changed {step.changed}"
    return None


@law("radix_cache", answers=("seed 001: reset is not implemented", "vllm#57727", "dynamo#6536"))
def reset_complete(step: Step[View, Held]) -> str | None:
    """After a reset nothing is cached and every slot is free."""
    if step.op.name != "reset" or isinstance(step.outcome, Refused):
        return None
    left: Sequence[Prefix] = list(step.after.entries)
    if left:
        return f"{list(left[0])} is cached after the reset"
    free = len(step.after.free)
    return None if free == step.held.total else f"{counted(free, 'slot')} {agree(free, 'are')} free after the reset"


@law("radix_cache", answers=("sglang#28692", "sglang#10637", "Megatron-LM#5822"))
def structure(step: Step[View, Held]) -> str | None:
    """Every entry is made of whole pages, and each shorter prefix of whole pages is an entry."""
    size = step.held.page_size
    for prefix, (slots, _) in step.after.entries.items():
        apart = any(s != slots[0] + i for i, s in enumerate(slots))
        if not prefix or len(prefix) % size or len(slots) != size or apart:
            return f"{list(prefix)} is cached in {list(slots)}, which is not one page of {size}"
        if slots[0] % size:
            return f"{list(prefix)} is cached in {list(slots)}, which lies across pages of {size}"
        if len(prefix) > size and prefix[:-size] not in step.after.entries:
            return f"{list(prefix)} is cached, but its prefix {list(prefix[:-size])} is not"
    return None


@law("radix_cache", answers=("sglang#35470", "sglang#28754", "atlas#373"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """No slot belongs to two entries, or to an entry and the caller."""
    cached = [slot for slots, _ in step.after.entries.values() for slot in slots]
    twice = _distinct([*cached, *step.held.slots])
    return None if twice is None else f"slot {twice} has two owners"


@law("radix_cache", answers=("seed 001: duplicates may be freed twice", "vllm#42571", "sglang#13826"))
def conservation(step: Step[View, Held]) -> str | None:
    """Every slot is exactly one of free, cached or held; evict and allocate take the fewest pages that suffice."""
    cached = [slot for slots, _ in step.after.entries.values() for slot in slots]
    slots = [*step.after.free, *cached, *step.held.slots]
    if (twice := _distinct(slots)) is not None:
        return f"slot {twice} is in two places of free, cached and held"
    if set(slots) != set(range(step.held.total)):
        lost = sorted(set(range(step.held.total)) ^ set(slots))
        return f"slot {lost[0]} is nowhere" if lost[0] < step.held.total else f"slot {lost[0]} is not in the pool"
    if step.op.name in ("evict", "allocate") and not isinstance(step.outcome, Refused):
        size = step.held.page_size
        asked = -(-step.op.args["n"] // size)
        gone = asked if step.op.name == "evict" else max(0, asked - len(step.before.free) // size)
        if len(step.outcome) != asked * size or len(evicted(step)) != gone:
            returned, pages = counted(len(step.outcome), "slot"), counted(len(evicted(step)), "page")
            return f"{step.op} returned {returned} and evicted {pages}, not {gone}"
    return None


@law("radix_cache", answers=("bytedance-iaas/sglang#508", "mini-sglang#52", "sglang#27147"))
def refcount_exact(step: Step[View, Held]) -> str | None:
    """The lock count of an entry is the number of locks on handles whose path contains it."""
    locks: Counter[Prefix] = Counter()
    for grip in step.held.grips.values():
        if grip.locks:
            for prefix in path(grip.prefix, step.held.page_size):
                locks[prefix] += grip.locks
    for prefix, (_, shown) in step.after.entries.items():
        if shown != locks[prefix]:
            return f"{list(prefix)} shows {shown} locks, but its handles have {locks[prefix]}"
    return None


@law("radix_cache", answers=("seed 001: unlock asserts at best", "LMCache#2559", "vllm#42571"))
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only a handle that is not stale can be locked, and only a locked handle can be unlocked."""
    locks = ("lock", "unlock", "cache_finished", "cache_unfinished")
    if step.op.name not in locks or isinstance(step.outcome, Refused):
        return None
    grip = step.held_before.grips[step.op.args["handle"]]
    if not grip.locks and step.op.name != "lock":
        return f"{step.op.name} accepted a handle without a lock"
    return None if is_live(grip, step.before.entries, step.held_before) else f"{step.op.name} accepted a stale handle"


@law("radix_cache", answers=("mini-sglang#52", "vllm#10507", "TensorRT-LLM#17926"))
def eviction_safety(step: Step[View, Held]) -> str | None:
    """The pages of a locked handle stay cached, in the slots that came with it."""
    if step.op.name == "reset":
        return None
    size = step.held.page_size
    for name, grip in step.held.grips.items():
        if not grip.locks:
            continue
        for i, prefix in enumerate(path(grip.prefix, size)):
            found = step.after.entries.get(prefix)
            if found is None or found[0] != grip.slots[i * size : (i + 1) * size]:
                return (
                    f"{name} is locked, but its page {list(prefix)} is {'gone' if found is None else 'in other slots'}"
                )
    return None


@law("radix_cache", answers=("seed 001: a match inside a node", "sglang#31643", "sglang#38000", "Megatron-LM#5822"))
def eviction_order(step: Step[View, Held]) -> str | None:
    """Unlocked pages are evicted in the order of their last use, the end of a path before its beginning."""
    used, entries = step.held.used, step.after.entries
    unlocked = [p for p, (_, locks) in entries.items() if not locks]
    wanted = [slot for p in sorted(unlocked, key=lambda p: (used.get(p, 0), -len(p))) for slot in entries[p][0]]
    if step.after.order != wanted:
        return f"the eviction order is {step.after.order}, but by last use {wanted}"
    if step.op.name in ("evict", "allocate") and not isinstance(step.outcome, Refused):
        gone = [slot for p in evicted(step) for slot in step.before.entries[p][0]]
        if set(gone) != set(step.before.order[: len(gone)]):
            return f"{sorted(gone)} were evicted, not {step.before.order[: len(gone)]}"
        if step.op.name == "evict" and list(step.outcome) != step.before.order[: len(gone)]:
            return f"evict freed {list(step.outcome)}, not {step.before.order[: len(gone)]}"
    return None


@law("radix_cache", answers=("seed 001: match_prefix walks a global", "nano-vllm#163", "sglang#10637"))
def prefix_soundness(step: Step[View, Held]) -> str | None:
    """A match has whole pages, in the slots of the entries on its path."""
    if not answers_match(step):
        return None
    length, slots = step.outcome
    asked, size = _asked(step), step.held.page_size
    entries = step.after.entries if step.op.name == "cache_unfinished" else step.before.entries
    if not 0 <= length <= len(asked) or length % size:
        return f"a match of {counted(length, 'token')} of {len(asked)}"
    found = [entries.get(prefix) for prefix in path(asked[:length], size)]
    if None in found:
        return f"matched {list(asked[:length])}, which is not cached"
    wanted = [slot for entry in found if entry for slot in entry[0]]
    if list(slots) == wanted:
        return None
    return f"matched {list(asked[:length])} in {list(slots)}, but it is in {wanted}"


@law("radix_cache", answers=("sglang#12092", "TensorRT-LLM#15655", "vllm#57610"))
def prefix_completeness(step: Step[View, Held]) -> str | None:
    """A match is the longest possible; insert_prefix and cache_finished count all cached tokens."""
    answered: int
    if answers_match(step):
        answered = step.outcome[0]
    elif step.op.name in ("insert_prefix", "cache_finished") and not isinstance(step.outcome, Refused):
        answered = step.outcome
    else:
        return None
    entries = step.after.entries if step.op.name == "cache_unfinished" else step.before.entries
    for prefix in reversed(path(_asked(step), step.held.page_size)):
        if len(prefix) <= answered:
            break
        if prefix in entries:
            return f"returned {counted(answered, 'token')}, but {list(prefix)} is cached"
    return None


@law("radix_cache", answers=("seed 001: keeps the caller's tokens", "mini-sglang#142", "nano-vllm#163"))
def content_equality(step: Step[View, Held]) -> str | None:
    """The slots of an entry hold the KV of exactly that prefix."""
    size, written = step.held.page_size, step.held.stamps
    for prefix, (slots, _) in step.after.entries.items():
        if [written.get(slot) for slot in slots] != stamps(prefix)[-size:]:
            return f"{list(prefix)} is cached in {list(slots)}, which do not hold its KV"
    return None


@law("radix_cache", answers=("sglang#28692", "seed 001: match_prefix splits"))
def write_isolation(step: Step[View, Held]) -> str | None:
    """A match changes only the eviction order; a lock changes no entry and no free slot; entries keep their slots.

    Slots that an allocation returned never change afterwards.
    """
    name, before, after = step.op.name, step.before, step.after
    if name in ("match_prefix", "match_request") and before._replace(order=after.order) != after:
        return f"{name} changed what the cache shows"
    if name in ("lock", "unlock") and (before.free != after.free or before.entries.keys() != after.entries.keys()):
        return f"{name} moved slots"
    kept = after.answers[:-1] if name == "allocate" and not isinstance(step.outcome, Refused) else after.answers
    if kept != before.answers[len(before.answers) - len(kept) :]:
        return f"{name} changed what an allocation had returned"
    if name == "reset":
        return None
    for prefix, (slots, _) in after.entries.items():
        if prefix in before.entries and before.entries[prefix][0] != slots:
            return f"{name} moved {list(prefix)} from {list(before.entries[prefix][0])} to {list(slots)}"
    return None


@law("radix_cache", answers=("sglang#10637", "sglang#34823", "TensorRT-LLM#12834"))
def accounting(step: Step[View, Held]) -> str | None:
    """sizes counts the slots that are free, the unlocked cached ones and the locked cached ones."""
    size = step.held.page_size
    locked = sum(locks > 0 for _, locks in step.after.entries.values())
    wanted = (len(step.after.free), (len(step.after.entries) - locked) * size, locked * size)
    return None if step.after.sizes == wanted else f"free, evictable, protected are {step.after.sizes}, not {wanted}"


@law("radix_cache", answers=("vllm#11565", "sglang#36770", "xllm#55"))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """OutOfSlots is raised only if the request does not fit, StaleHandle and NotLocked only if they are true."""
    if not isinstance(step.outcome, Refused):
        return None
    args = step.op.args
    grip = step.held_before.grips.get(args.get("handle", ""))
    match step.outcome.error:
        case "OutOfSlots":
            size = step.held.page_size
            unlocked = sum(not locks for _, locks in step.before.entries.values()) * size
            room = unlocked + (len(step.before.free) if step.op.name == "allocate" else 0)
            if -(-args["n"] // size) * size <= room:
                return f"{step.op} was refused with room for {room}"
        case "StaleHandle" if grip and is_live(grip, step.before.entries, step.held_before):
            return f"{args['handle']} is not stale"
        case "NotLocked" if grip and grip.locks:
            return f"{args['handle']} is locked"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
