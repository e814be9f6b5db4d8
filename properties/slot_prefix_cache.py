"""Laws of slot_prefix_cache, over the state that it shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, counted, law, laws_of
from kvlockstep.properties.stamps import stamps

Prefix = tuple[int, ...]

POISON = -1


class View(NamedTuple):
    """`entries` maps every prefix to (slot, version); `kv` has the stamps of every slot, all positions."""

    entries: dict[Prefix, tuple[int, int]]
    kv: list[list[int]]


class Row(NamedTuple):
    """The part of the sequence inserted into a slot that was neither overwritten nor evicted since."""

    tokens: Prefix
    version: int


class Held(NamedTuple):
    """State that follows from the results so far.

    `rows` is by slot, the latest insertion last. `held` maps every prefix of them to the (slot, version) of the
    latest. Both are before this step's evictions. `used` is the last use of every prefix. `written` has the tokens
    whose KV the harness put into each slot, from position 0. No mapping is ever changed.
    """

    capacity: int
    clock: int
    rows: Mapping[int, Row]
    held: Mapping[Prefix, tuple[int, int]]
    used: Mapping[Prefix, int]
    pins: Mapping[Prefix, int]
    written: Mapping[int, Prefix]


def common_length(a: Prefix, b: Prefix) -> int:
    """Length of the longest common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def overwritten(rows: Mapping[int, Row], name: str, args: Mapping[str, Any]) -> dict[int, Row]:
    """The rows after insert, reuse or copy_kv, as these arguments change them."""
    after = dict(rows)
    slot = args["target"] if name == "copy_kv" else args["slot"]
    if name == "insert":
        after.pop(slot, None)
        after[slot] = Row(tuple(args["tokens"]), args["version"])
    elif (row := after.get(slot)) is not None:
        length = args["length"] if name == "reuse" else common_length(tuple(args["tokens"]), row.tokens)
        if length > 0:
            after[slot] = Row(row.tokens[:length], row.version)
        else:
            del after[slot]
    return after


def trimmed(rows: Mapping[int, Row], entries: Mapping[Prefix, Any]) -> dict[int, Row]:
    """Returns the rows without their evicted ends: a row extends as far as there are entries."""
    kept = {}
    for slot, row in rows.items():
        length = len(row.tokens)
        while length and row.tokens[:length] not in entries:
            length -= 1
        if length:
            kept[slot] = row if length == len(row.tokens) else row._replace(tokens=row.tokens[:length])
    return kept


def prefixes(rows: Mapping[int, Row]) -> dict[Prefix, tuple[int, int]]:
    """Maps every prefix of the rows to the slot and version of the latest row that has it."""
    return {row.tokens[:n]: (slot, row.version) for slot, row in rows.items() for n in range(1, len(row.tokens) + 1)}


def open_leaves(entries: Iterable[Prefix], pins: Mapping[Prefix, int]) -> list[Prefix]:
    """Lists the entries that may be evicted: no other entry extends them, and they have no pin."""
    inner = {p[:-1] for p in entries}
    return [p for p in entries if p not in inner and p not in pins]


def evicted(step: Step[View, Held]) -> list[Prefix]:
    """Lists the prefixes that this step evicted: the rows had them, and the cache does not show them."""
    after = step.after.entries
    return [p for p in step.held.held if p not in after]


@law("slot_prefix_cache", answers=("Megatron-LM#6091", "atlas#373"))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes neither entries nor KV."""
    if isinstance(step.outcome, Refused) and step.before != step.after:
        return f"the operation was refused, but changed {step.changed}"
    return None


@law("slot_prefix_cache", answers=("seed 000: eviction clears the children of an interior node", "Megatron-LM#5822"))
def structure(step: Step[View, Held]) -> str | None:
    """Every prefix of an entry is an entry."""
    for prefix in step.after.entries:
        if len(prefix) > 1 and prefix[:-1] not in step.after.entries:
            return f"{list(prefix)} is cached, its prefix {list(prefix[:-1])} is not"
    return None


@law("slot_prefix_cache", answers=("seed 000: eviction cuts pinned descendants off", "mini-sglang#52", "LMCache#987"))
def eviction_safety(step: Step[View, Held]) -> str | None:
    """A pinned entry stays cached, whatever is inserted, overwritten or evicted."""
    lost = [list(p) for p in step.held.pins if p not in step.after.entries]
    return f"the pinned entry {lost[0]} is gone" if lost else None


@law("slot_prefix_cache", answers=("atlas#692", "mlx-lm#1547"))
def write_isolation(step: Step[View, Held]) -> str | None:
    """An operation changes KV only in the slot that it writes to; copy_kv changes only the positions it copies."""
    if step.before.kv == step.after.kv:
        return None
    target = step.op.args.get("target", step.op.args.get("slot"))
    for slot, (old, new) in enumerate(zip(step.before.kv, step.after.kv, strict=True)):
        untouched = len(step.op.args["tokens"]) if step.op.name == "copy_kv" else len(old)
        start = untouched if slot == target else 0
        if old[start:] != new[start:]:
            return f"{step.op.name} changed the KV of slot {slot}"
    return None


@law("slot_prefix_cache", answers=("seed 000: in-place reuse leaves longer entries", "nano-vllm#163", "mlx-lm#1547"))
def content_equality(step: Step[View, Held]) -> str | None:
    """The slot of an entry, and the target of a copy, holds the KV of exactly that prefix in all positions."""
    kv = step.after.kv
    for prefix, (slot, _) in step.after.entries.items():
        if not 0 <= slot < len(kv) or kv[slot][: len(prefix)] != stamps(prefix):
            return f"{list(prefix)} is cached in slot {slot}, which does not hold its KV"
    if step.op.name == "copy_kv" and not isinstance(step.outcome, Refused):
        tokens = tuple(step.op.args["tokens"])
        target = step.op.args["target"]
        if not 0 <= target < len(kv) or kv[target][: len(tokens)] != stamps(tokens):
            return f"slot {target} does not hold the KV of {list(tokens)} after the copy"
    return None


@law("slot_prefix_cache", answers=("seed 000: an evicted entry is still walked into", "vllm#17305"))
def prefix_soundness(step: Step[View, Held]) -> str | None:
    """find returns an entry that is a prefix of the given tokens, with its slot and version, or a miss."""
    if step.op.name != "find" or isinstance(step.outcome, Refused):
        return None
    length, slot, version = step.outcome
    asked = step.op.args["tokens"]
    if length == 0:
        return None if (slot, version) == (-1, 0) else f"a miss names slot {slot}, version {version}"
    if not 0 < length <= len(asked):
        return f"find returned {counted(length, 'token')} of {len(asked)}"
    entry = step.before.entries.get(tuple(asked[:length]))
    if entry == (slot, version):
        return None
    return f"find returned {asked[:length]} in slot {slot}, but the entry is {entry}"


@law("slot_prefix_cache", answers=("sglang#12092", "vllm#47235"))
def prefix_completeness(step: Step[View, Held]) -> str | None:
    """find returns the longest entry."""
    if step.op.name != "find" or isinstance(step.outcome, Refused):
        return None
    asked = tuple(step.op.args["tokens"])
    for length in range(len(asked), step.outcome[0], -1):
        if asked[:length] in step.before.entries:
            return f"find returned {counted(step.outcome[0], 'token')}, but {list(asked[:length])} is cached"
    return None


@law("slot_prefix_cache", answers=("seed 000: release ignores what was never pinned", "LMCache#2559"))
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only an entry with a pin can be released."""
    if step.op.name == "release" and not isinstance(step.outcome, Refused):
        prefix = tuple(step.op.args["tokens"])
        if prefix not in step.held_before.pins:
            return f"release accepted {list(prefix)}, which had no pin"
    return None


@law("slot_prefix_cache", answers=("seed 000: a slot's version tells whether its KV is current", "Megatron-LM#6218"))
def version_current(step: Step[View, Held]) -> str | None:
    """An entry has the slot it was last inserted into, of those that still hold it, and the version given then."""
    held = step.held.held
    for prefix, answer in step.after.entries.items():
        if held.get(prefix, answer) != answer:
            return f"{list(prefix)} is in slot, version {answer}, but the latest insertion was {held[prefix]}"
    return None


@law("slot_prefix_cache", answers=("ik_llama.cpp#2320", "seed 000: loops when everything is pinned"))
def accounting(step: Step[View, Held]) -> str | None:
    """After insert or release the cache is within its capacity, unless every leaf is pinned."""
    if step.op.name not in ("insert", "release") or isinstance(step.outcome, Refused):
        return None
    count = len(step.after.entries)
    if count <= step.held.capacity or not (leaves := open_leaves(step.after.entries, step.held.pins)):
        return None
    return f"{count} entries, capacity {step.held.capacity}, though {list(leaves[0])} could be evicted"


@law("slot_prefix_cache", answers=("sglang#4987", "dynamo#6536"))
def conservation(step: Step[View, Held]) -> str | None:
    """Every entry is held by a slot; only insert and release evict, and no more entries than needed."""
    held, after = step.held.held, step.after.entries
    ghosts = [list(p) for p in after if p not in held]
    if ghosts:
        return f"{ghosts[0]} is cached, though no slot holds it"
    gone = len(held) - len(after)
    if not gone:
        return None
    evicts = step.op.name in ("insert", "release") and not isinstance(step.outcome, Refused)
    allowed = max(0, len(held) - step.held.capacity) if evicts else 0
    return f"{step.op.name} lost {gone} entries, but only {allowed} had to go" if gone > allowed else None


@law("slot_prefix_cache", answers=("sglang#31643", "sglang#38000", "sglang-omni#1724", "Megatron-LM#5822"))
def eviction_order(step: Step[View, Held]) -> str | None:
    """No entry is evicted while an unpinned leaf that was used less recently stays."""
    gone = evicted(step)
    if not gone:
        return None
    used = step.held.used
    newest = max(gone, key=lambda p: used.get(p, 0))
    for leaf in open_leaves(step.after.entries, step.held.pins):
        if used.get(leaf, 0) < used.get(newest, 0):
            return f"{list(newest)} was evicted, but {list(leaf)} was used less recently"
    return None


@law("slot_prefix_cache", answers=("llama.cpp#10873", "vllm#17305"))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """Pinned is raised only if a pinned entry would be lost, NotCached and NotPinned only if they are true."""
    if not isinstance(step.outcome, Refused):
        return None
    name, args = step.op.name, step.op.args
    match step.outcome.error:
        case "Pinned":
            held = prefixes(overwritten(step.held.rows, name, args))
            if all(p in held for p in step.held.pins):
                return f"{name} was refused for a pin, but no pinned entry would be lost"
        case "NotCached" if tuple(args["tokens"]) in step.before.entries:
            return f"{args['tokens']} is cached"
        case "NotPinned" if tuple(args["tokens"]) in step.held.pins:
            return f"{args['tokens']} is pinned"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
