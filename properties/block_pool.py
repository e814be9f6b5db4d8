"""Laws of block_pool, over the state that the pool shows (`View`) and what its results so far imply (`Held`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of
from kvlockstep.reference.block_pool.contract import ExtraKey, Prefix


class View(NamedTuple):
    """`queue`: the free queue, head first; `refs`: the holders of each block; `entries`: the blocks of each prefix."""

    queue: list[int]
    refs: list[int]
    entries: dict[Prefix, list[int]]
    num_free: int
    num_evictable: int
    usage: float


class Held(NamedTuple):
    """`holders` counts the holders of each block; `cached` has the prefix that each was given since it was handed out.

    No mapping is ever changed.
    """

    blocks: int
    block_size: int
    holders: Mapping[int, int]
    cached: Mapping[int, Prefix]


def prefix_of(tokens: list[int], extra_keys: list[ExtraKey], blocks: int, block_size: int) -> Prefix:
    """Returns the prefix that the first `blocks` blocks of a request stand for."""
    keys = tuple(extra_keys[:blocks])
    return Prefix(keys + (None,) * (blocks - len(keys)), tuple(tokens[: blocks * block_size]))


def prefix_in(step: Step[View, Held], blocks: int) -> Prefix:
    """Returns the prefix of the first `blocks` blocks of the operation's request."""
    return prefix_of(step.op.args["tokens"], step.op.args["extra_keys"], blocks, step.held.block_size)


def accepted(step: Step[View, Held], *names: str) -> bool:
    """True if the operation is one of these and was not refused."""
    return step.op.name in names and not isinstance(step.outcome, Refused)


def _queue_expected(step: Step[View, Held]) -> list[int]:
    """Computes the queue after the operation from the queue before it and the cached blocks."""
    before: list[int] = step.before.queue
    holders = step.held.holders
    if isinstance(step.outcome, Refused):
        return before
    match step.op.name:
        case "allocate":
            return before[step.op.args["n"] :]
        case "touch":
            return [block for block in before if block not in step.op.args["blocks"]]
        case "free":
            idle = [block for block in reversed(step.op.args["blocks"]) if not holders.get(block)]
            blank = [block for block in idle if block not in step.held.cached]
            return blank + before + [block for block in idle if block in step.held.cached]
        case "reset":
            return [block for block in range(step.held.blocks) if not holders.get(block)]
    return before


@law("block_pool", answers=("dynamo#13398", "unified-cache-management#1053", "seed 002: append looks at nothing"))
def no_double_free(step: Step[View, Held]) -> str | None:
    """Only a held block can be freed, and only once in one call."""
    if not accepted(step, "free"):
        return None
    blocks = step.op.args["blocks"]
    for i, block in enumerate(blocks):
        if block in blocks[:i]:
            return f"free accepted block {block} twice"
        if not step.held_before.holders.get(block):
            return f"free accepted block {block}, which nobody held"
    return None


@law("block_pool", answers=("Megatron-LM#6091", "vllm#11562"))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing, and neither does a lookup."""
    if (isinstance(step.outcome, Refused) or step.op.name == "find_longest_prefix") and step.before != step.after:
        return f"{step.op.name} changed {step.changed}"
    return None


@law("block_pool", answers=("dynamo#13398", "unified-cache-management#1053", "sglang#13501"))
def conservation(step: Step[View, Held]) -> str | None:
    """The free queue has exactly the blocks that nobody holds, each once."""
    queue, holders = step.after.queue, step.held.holders
    if len(set(queue)) < len(queue):
        return f"the free queue {queue} has a block twice"
    for block in range(step.held.blocks):
        if (block in queue) == bool(holders.get(block)):
            return f"block {block} is {'free, though held' if block in queue else 'neither free nor held'}"
    strangers = [block for block in queue if not 0 <= block < step.held.blocks]
    return f"the free queue has block {strangers[0]}" if strangers else None


@law("block_pool", answers=("TensorRT-LLM#12648", "vllm#22209", "LMCache#2785"))
def refcount_exact(step: Step[View, Held]) -> str | None:
    """The reference count of a block is the number of its holders."""
    for block, count in enumerate(step.after.refs):
        if count != (holders := step.held.holders.get(block, 0)):
            return f"block {block} has {holders} holders, but its count is {count}"
    return None


@law("block_pool", answers=("vllm#42571", "vllm#10507", "TensorRT-LLM#12648"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """allocate hands out exactly as many blocks as asked for, all different and all free."""
    if not accepted(step, "allocate"):
        return None
    taken, n = step.outcome, step.op.args["n"]
    if len(taken) != n or len(set(taken)) != n:
        return f"{counted(n, 'block')} {agree(n, 'were')} asked for, but allocate handed out {taken}"
    held = [block for block in taken if step.held_before.holders.get(block)]
    return f"allocate handed out block {held[0]}, which is held" if held else None


@law("block_pool", answers=("nano-vllm#163", "kvcached#362", "vllm#49125", "mini-sglang#142"))
def content_equality(step: Step[View, Held]) -> str | None:
    """A block is found only under the prefix that it was cached as since it was last handed out."""
    for prefix, blocks in step.after.entries.items():
        for block in blocks:
            if step.held.cached.get(block) != prefix:
                return f"block {block} is cached as {show(prefix)}, not as {show(step.held.cached.get(block))}"
    return None


@law("block_pool", answers=("kvcached#401", "vllm#55092", "mini-sglang#52"))
def eviction_safety(step: Step[View, Held]) -> str | None:
    """A cached block stays cached until it is handed out again, whatever happens to its twins."""
    for block, prefix in step.held.cached.items():
        if block not in step.after.entries.get(prefix, ()):
            return f"block {block} was cached as {show(prefix)} and is not any more"
    return None


@law("block_pool", answers=("Megatron-LM#5822", "sglang#38000", "sglang#31643", "seed 002: the tail goes first"))
def eviction_order(step: Step[View, Held]) -> str | None:
    """allocate takes from the head of the queue; free puts cached blocks at its tail, others at its head, last first.

    No other block moves.
    """
    if accepted(step, "allocate") and step.outcome != step.before.queue[: step.op.args["n"]]:
        return f"allocate handed out {step.outcome}, but the queue began with {step.before.queue[: step.op.args['n']]}"
    expected = _queue_expected(step)
    return None if step.after.queue == expected else f"the free queue is {step.after.queue}, not {expected}"


@law("block_pool", answers=("vllm#12621", "vllm#12603", "vllm#54727", "seed 002: hash(-1) == hash(-2)"))
def prefix_soundness(step: Step[View, Held]) -> str | None:
    """Each hit caches the request up to its end: tokens, parents and extra keys. A lookup respects its limit."""
    if not accepted(step, "find_longest_prefix"):
        return None
    for i, block in enumerate(step.outcome):
        wanted = prefix_in(step, i + 1)
        if block not in step.before.entries.get(wanted, ()):
            return f"hit {i} is block {block}, which caches {show(step.held.cached.get(block))}, not {show(wanted)}"
    most = _most(step)
    hits = len(step.outcome)
    return f"{counted(hits, 'hit')}, but at most {most} {agree(most, 'were')} asked for" if hits > most else None


@law("block_pool", answers=("vllm#11186", "sglang#12092", "vllm#47235"))
def prefix_completeness(step: Step[View, Held]) -> str | None:
    """find_longest_prefix stops only where the next block of the request is not cached, or at its limit."""
    if not accepted(step, "find_longest_prefix"):
        return None
    found = len(step.outcome)
    if found < _most(step) and prefix_in(step, found + 1) in step.before.entries:
        return f"{counted(found, 'hit')}, but {show(prefix_in(step, found + 1))} is cached"
    return None


@law("block_pool", answers=("llama.cpp#10873", "vllm#11565"))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """allocate is refused only if fewer blocks are free than asked for, reset only if a block is held."""
    if step.outcome == Refused("OutOfSlots") and 0 <= (n := step.op.args["n"]) <= len(step.before.queue):
        free = len(step.before.queue)
        return f"{counted(n, 'block')} {agree(n, 'were')} refused, but {free} {agree(free, 'are')} free"
    if step.outcome == Refused("InUse") and not any(step.held_before.holders.values()):
        return "reset was refused, though no block is held"
    return None


@law("block_pool", answers=("imp#1115", "xllm#829", "seed 002: remove lowers num_free_blocks whatever it is given"))
def accounting(step: Step[View, Held]) -> str | None:
    """num_free, num_evictable and usage equal a recount."""
    view, blocks = step.after, step.held.blocks
    evictable = sum(block in step.held.cached for block in view.queue)
    usage = 1 - len(view.queue) / blocks if blocks else 0.0
    for name, shown, recount in (
        ("num_free", view.num_free, len(view.queue)),
        ("num_evictable", view.num_evictable, evictable),
        ("usage", view.usage, usage),
    ):
        if shown != recount:
            return f"{name} is {shown}, but a recount gives {recount}"
    return None


@law("block_pool", answers=("sglang#26009",))
def reset_complete(step: Step[View, Held]) -> str | None:
    """reset is accepted only if no block is held, and leaves nothing cached."""
    if not accepted(step, "reset"):
        return None
    if held := [block for block, holders in step.held_before.holders.items() if holders]:
        return f"reset was accepted, though block {held[0]} is held"
    return f"{show(next(iter(step.after.entries)))} is cached after reset" if step.after.entries else None


def _most(step: Step[View, Held]) -> int:
    blocks: int = len(step.op.args["tokens"]) // step.held.block_size
    limit: int | None = step.op.args["limit"]
    return blocks if limit is None else min(limit, blocks)


def show(prefix: Any) -> str:
    """Formats a prefix for a message."""
    if prefix is None:
        return "nothing"
    extra = f" under {list(prefix.extra_keys)}" if any(key is not None for key in prefix.extra_keys) else ""
    return f"{list(prefix.tokens)}{extra}"


LAWS = (*laws_of(globals()), *EVERYWHERE)
