"""Laws of paged_cache, over the state that the cache shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, counted, law, laws_of
from kvlockstep.properties.paged_cache.state import (
    Counts,
    Held,
    View,
    asked_keys,
    copied_block,
    evicted,
    rank,
    run_of,
    taken,
)
from kvlockstep.properties.stamps import stamps


def _hit(step: Step[View, Held]) -> list[int] | None:
    if isinstance(step.outcome, Refused):
        return None
    if step.op.name == "lookup":
        return list(step.outcome)
    if step.op.name == "allocate":
        return list(step.outcome.blocks[: step.outcome.cached // step.held.block_size])
    return None


def _rate(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@law("paged_cache", answers=("lmdeploy#4917", "dynamo#6536"))
def reset_complete(step: Step[View, Held]) -> str | None:
    """After a reset no sequence and no key is left, every block is free, and every counter is 0."""
    if step.op.name != "reset":
        return None
    view = step.after
    left = [name for name in ("tables", "registered", "idle") if getattr(view, name)]
    if left or len(view.free) != step.held.blocks:
        return f"after the reset there are {', '.join(left) or 'blocks that are not free'}"
    counted = {c: n for c in Counts._fields if (n := getattr(view.statistics, c))}
    return f"after the reset {counted} is still counted" if counted else None


@law(
    "paged_cache",
    answers=("LMCache#2559", "vllm#18829", "seed 004: append begins a sequence, share_prefix extends one"),
)
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only a live sequence can be freed, grown, cut, forked or registered; only a name that is not live can begin."""
    args = step.op.args
    if isinstance(step.outcome, Refused) or "sequence" not in args:
        return None
    live = step.held_before.tokens
    begun = args["sequence"] if step.op.name == "allocate" else args.get("child")
    if step.op.name != "allocate" and args["sequence"] not in live:
        return f"{step.op.name} accepted sequence {args['sequence']}, which was not live"
    return f"{step.op.name} began sequence {begun}, which was live" if begun in live else None


@law(
    "paged_cache",
    answers=("seed 004: eviction drops blocks from the tables of live sequences", "atlas#373", "vllm#10507"),
)
def eviction_safety(step: Step[View, Held]) -> str | None:
    """A sequence keeps its table and length, whatever happens to others; only free, finish and reset end it."""
    if step.op.name == "reset":
        return None
    named = {step.op.args.get("sequence"), step.op.args.get("child")}
    for sequence, table in step.before.tables.items():
        if sequence in step.after.tables:
            if sequence in named and not isinstance(step.outcome, Refused) and step.op.name != "fork":
                continue
            if step.after.tables[sequence] != table or step.after.lengths[sequence] != step.before.lengths[sequence]:
                return (
                    f"{step.op.name} changed sequence {sequence} from blocks {table} to {step.after.tables[sequence]}"
                )
        elif step.op.name not in ("free", "finish") or sequence not in named:
            return f"{step.op.name} ended sequence {sequence}"
    return None


@law(
    "paged_cache",
    answers=("seed 004: allocating for a live sequence leaves a gap behind its last token", "TensorRT-LLM#13320"),
)
def structure(step: Step[View, Held]) -> str | None:
    """A sequence has the tokens it was given and exactly the blocks for them; a block has one index in all tables."""
    held = step.held
    index: dict[int, int] = {}
    for sequence, table in step.after.tables.items():
        tokens, length = held.tokens.get(sequence), step.after.lengths[sequence]
        if tokens is None or length != len(tokens):
            given = "none" if tokens is None else len(tokens)
            return f"sequence {sequence} has {counted(length, 'token')}, but was given {given}"
        if len(table) != held.blocks_for(length):
            return f"sequence {sequence} has {counted(len(table), 'block')} for {counted(length, 'token')}"
        if len(set(table)) < len(table):
            return f"sequence {sequence} has a block twice: {table}"
        for i, block in enumerate(table):
            if not 0 <= block < held.blocks or index.setdefault(block, i) != i:
                return f"sequence {sequence} has block {block} at index {i}, which is not there"
    return None


@law("paged_cache", answers=("seed 004: what a failed allocation took is freed twice", "sglang#22862", "xllm#829"))
def conservation(step: Step[View, Held]) -> str | None:
    """Each block is free, idle or held; idle blocks are the registered ones that no sequence holds."""
    view = step.after
    held = {block for table in view.tables.values() for block in table}
    if len(set(view.registered.values())) < len(view.registered):
        return f"one block has two keys: {view.registered}"
    idle = {block for block in view.registered.values() if block not in held}
    if set(view.idle) != idle or len(view.idle) != len(idle):
        return f"idle are {view.idle}, but {sorted(idle)} are registered and not held"
    for block in range(step.held.blocks):
        times = view.free.count(block) + (block in held) + (block in idle)
        if times != 1:
            return f"block {block} is {'neither free, idle nor held' if not times else 'free, and idle or held'}"
    return None


@law("paged_cache", answers=("seed 004: blocks freed twice are handed out twice", "vllm#42571", "sglang#25805"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """Only a block that nobody holds is handed out, and only once."""
    new = taken(step)
    for i, block in enumerate(new):
        holders = [s for s, table in step.before.tables.items() if block in table]
        if holders or block in new[:i]:
            whose = f"sequence {holders[0]} holds" if holders else "it took before"
            return f"{step.op.name} took block {block}, which {whose}"
    return None


@law("paged_cache", answers=("seed 004: a registration counts as a holder and is never taken back", "LMCache#3884"))
def refcount_exact(step: Step[View, Held]) -> str | None:
    """The reference count of a block is the number of sequences that hold it."""
    for block, count in enumerate(step.after.refs):
        holders = sum(block in table for table in step.after.tables.values())
        if count != holders:
            return f"block {block} counts {count} references, but {holders} sequences hold it"
    return None


@law(
    "paged_cache",
    answers=("seed 004: copy-on-write changes the table and copies nothing", "nano-vllm#163", "LMCache#4921"),
)
def content_equality(step: Step[View, Held]) -> str | None:
    """A sequence reads the KV of its own tokens through its table, and a registered block has the KV of its key."""
    held, view = step.held, step.after
    for sequence, content in view.content.items():
        tokens = held.tokens.get(sequence, ())
        if content != stamps(tokens):
            wrong = next(
                (i for i, (a, b) in enumerate(zip(content, stamps(tokens), strict=False)) if a != b), len(content)
            )
            return f"sequence {sequence} reads at position {wrong} other KV than that of {list(tokens[: wrong + 1])}"
    for key, content in view.cached.items():
        prefix = held.prefixes.get(key)
        if prefix is not None and content != stamps(prefix)[-held.block_size :]:
            return f"block {view.registered[key]} is registered for {list(prefix)}, but does not hold its KV"
    return None


@law("paged_cache", answers=("atlas#692", "vllm#417", "mlx-lm#1547", "sglang#35470"))
def write_isolation(step: Step[View, Held]) -> str | None:
    """Tokens are written only into unregistered blocks that no other sequence holds."""
    if step.op.name not in ("allocate", "append") or isinstance(step.outcome, Refused):
        return None
    sequence, size = step.op.args["sequence"], step.held.block_size
    table, length = step.after.tables.get(sequence, []), step.after.lengths.get(sequence, 0)
    start = step.outcome.cached if step.op.name == "allocate" else length - len(step.op.args["tokens"])
    for block in table[start // size : step.held.blocks_for(length)]:
        others = [s for s, t in step.after.tables.items() if s != sequence and block in t]
        if others or block in step.after.registered.values():
            why = f"sequence {others[0]} holds" if others else "is registered"
            return f"sequence {sequence} writes block {block}, which {why}"
    return None


@law(
    "paged_cache",
    answers=("seed 004: a prefix with an evicted block is answered around the hole", "vllm#12603", "sglang#28754"),
)
def prefix_soundness(step: Step[View, Held]) -> str | None:
    """A hit is a run of blocks registered for the leading keys, each at its own index; it ends at the first hole."""
    hit = _hit(step)
    if hit is None:
        return None
    run = run_of(asked_keys(step.op, step.held.block_size), step.before.registered, step.held_before.lives)
    if hit != run[: len(hit)]:
        return f"{step.op.name} returned {hit}, but registered for these keys are {run}"
    if step.op.name == "allocate" and step.outcome.cached != len(hit) * step.held.block_size:
        return f"allocate returned {counted(step.outcome.cached, 'cached token')} in blocks of {step.held.block_size}"
    return None


@law("paged_cache", answers=("vllm#57610", "sglang#12092", "nano-vllm#66"))
def prefix_completeness(step: Step[View, Held]) -> str | None:
    """A hit is the longest run; a registered key is found until its block is evicted."""
    hit = _hit(step)
    if hit is not None:
        run = run_of(asked_keys(step.op, step.held.block_size), step.before.registered, step.held_before.lives)
        return f"{step.op.name} returned {hit}, but registered are {run}" if len(hit) < len(run) else None
    if step.op.name in ("register", "finish") and not isinstance(step.outcome, Refused):
        missing = [k for k in step.held.registered if k not in step.after.registered]
        if missing:
            return f"{list(step.held.prefixes[missing[0]])} was registered, but is not any more"
    return None


@law(
    "paged_cache",
    answers=("seed 004: victims are compared by a HashMap's order", "sglang#38000", "sglang#4987", "vllm#16825"),
)
def eviction_order(step: Step[View, Held]) -> str | None:
    """Idle blocks are evicted in the policy's order, no more than needed; idle_blocks lists them in that order."""
    held = step.held
    if step.op.name != "reset" and (gone := evicted(step)):
        needed = step.op.args["blocks"] if step.op.name == "evict" else max(0, len(taken(step)) - len(step.before.free))
        hit = _hit(step) or []
        order = sorted((b for b in step.before.idle if b not in hit), key=lambda b: rank(step.held_before, b))
        if isinstance(step.outcome, Refused) or len(gone) > needed:
            return f"{step.op.name} evicted {gone}, but only {needed} had to go"
        if set(gone) != set(order[: len(gone)]):
            return f"{step.op.name} evicted {sorted(gone)}, but the policy puts {order[: len(gone)]} first"
    order = sorted(step.after.idle, key=lambda b: rank(held, b))
    return None if order == step.after.idle else f"idle are {step.after.idle}, but the policy's order is {order}"


@law(
    "paged_cache",
    answers=(
        "seed 004: a failed allocation frees blocks and keeps others in the table",
        "Megatron-LM#6091",
        "Megatron-LM#6416",
    ),
)
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing, not even a counter; neither does lookup."""
    if (isinstance(step.outcome, Refused) or step.op.name == "lookup") and step.before != step.after:
        return f"{step.op.name} changed {step.changed}"
    return None


@law("paged_cache", answers=("llama.cpp#10873", "vllm#11565", "xllm#55"))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """OutOfSlots is raised only if the free blocks, and the idle ones outside of the hit, are too few."""
    if step.outcome != Refused("OutOfSlots"):
        return None
    op, before, held = step.op, step.before, step.held_before
    hit: list[int] = []
    match op.name:
        case "allocate":
            hit = run_of(asked_keys(op, held.block_size), before.registered, held.lives)
            needed = held.blocks_for(len(op.args["tokens"])) - len(hit)
        case "append":
            sequence = op.args["sequence"]
            length = before.lengths.get(sequence, 0)
            needed = held.blocks_for(length + len(op.args["tokens"])) - held.blocks_for(length)
            needed += copied_block(step) is not None
        case "evict":
            available = len(before.idle)
            idle = counted(available, "block")
            return f"evict was refused with {idle} idle" if op.args["blocks"] <= available else None
        case _:
            return f"{op.name} takes no block, but was refused for lack of one"
    available = len(before.free) + sum(block not in hit for block in before.idle)
    if needed > available:
        return None
    return f"{op.name} was refused {counted(needed, 'block')} with {available} available"


@law(
    "paged_cache",
    answers=(
        "seed 004: cached blocks count as used, shared ones twice, bytes as if every dtype had two",
        "vllm#25780",
        "Megatron-LM#6416",
        "imp#1120",
    ),
)
def accounting(step: Step[View, Held]) -> str | None:
    """Every statistic equals a recount from the tables, the lengths and the results so far."""
    view, held, got = step.after, step.held, step.after.statistics
    filled: dict[int, int] = {}
    for sequence, table in view.tables.items():
        for i, block in enumerate(table):
            filled[block] = max(
                filled.get(block, 0), min(held.block_size, view.lengths[sequence] - i * held.block_size)
            )
    room, counts = len(filled) * held.block_size, held.counts
    want = {
        "blocks": held.blocks,
        "free": len(view.free),
        "cached": len(view.idle),
        "held": len(filled),
        "shared": sum(sum(block in table for table in view.tables.values()) > 1 for block in filled),
        **counts._asdict(),
        "deallocations": counts.allocations - len(filled) - len(view.idle),
        "hit_rate": _rate(counts.hits, counts.hits + counts.misses),
        "utilisation": _rate(len(filled), held.blocks),
        "fragmentation": _rate(room - sum(filled.values()), room),
        "memory_bytes": (len(filled) + len(view.idle)) * held.block_bytes,
        "capacity_bytes": held.blocks * held.block_bytes,
    }
    for name, value in want.items():
        if getattr(got, name) != value:
            return f"{name} is {getattr(got, name)}, but a recount gives {value}"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
