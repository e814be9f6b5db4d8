"""Goals of paged_cache: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter

from kvlockstep.models.core.model import Goal
from kvlockstep.properties.law import Refused, Step
from kvlockstep.properties.paged_cache.state import (
    Held,
    View,
    asked_keys,
    copied_block,
    evicted,
    keys_from,
    rank,
    run_of,
    taken,
)
from kvlockstep.reference.paged_cache.contract import POLICIES

GOALS = (
    Goal("hit", "a sequence starts with cached tokens"),
    Goal("full_prefix_hit", "all tokens of a new sequence are cached"),
    Goal("idle_hit", "a hit is on blocks that no sequence holds"),
    Goal("hit_saved", "an allocation that evicts spares its own hit, which the policy would have evicted"),
    Goal("partial_hit", "some of the keys asked for are hit"),
    Goal("eviction_lru", "a block is evicted under lru"),
    Goal("eviction_fifo", "a block is evicted under fifo"),
    Goal("eviction_frequency", "a block is evicted under frequency"),
    Goal("policies_differ", "the evicted block is not the one that another policy would evict"),
    Goal("tie", "two blocks differ only by their depth, and one is evicted"),
    Goal("hole", "a hit ends at a key that is not registered, though a later one is"),
    Goal("hole_filled", "a key is registered after a later one of its sequence"),
    Goal("wrong_index", "a registered key is asked for at another index"),
    Goal("twin", "a key that another block has is registered"),
    Goal("copy_shared", "an append copies a block that another sequence holds"),
    Goal("copy_registered", "an append copies a registered block that nobody else holds"),
    Goal("copy_refused", "an append is refused for lack of a block to copy into"),
    Goal("copy_and_grow", "an append copies a block and takes further ones"),
    Goal("full_shared_tail", "an append behind a full shared block copies nothing"),
    Goal("divergent", "two sequences that share a block differ behind it"),
    Goal("shared", "a block is held by several sequences"),
    Goal("fork_mid_block", "a sequence is forked in the middle of a block"),
    Goal("fork_shorter", "a sequence is forked at fewer tokens than it has"),
    Goal("free_of_shared", "a sequence whose blocks another one holds is freed"),
    Goal("truncate_mid_block", "a sequence is cut in the middle of a block"),
    Goal("refused_allocation", "an allocation is refused"),
    Goal("refused_with_hit", "an allocation with a hit is refused"),
    Goal("refused_partly", "an allocation is refused though some blocks are available"),
    Goal("physical_reuse", "a block is taken again"),
    Goal("evict_none_idle", "evict asks for more blocks than are idle"),
    Goal("empty_sequence", "a sequence of no tokens is allocated"),
    Goal("append_to_empty", "a token is appended to a sequence of no tokens"),
    Goal("length_0_mod_block", "a sequence fills its last block"),
    Goal("length_1_mod_block", "a sequence has one token in its last block"),
    Goal("length_-1_mod_block", "a sequence is one token short of filling its last block"),
    Goal("several_blocks", "an append takes several blocks"),
    Goal("reset_live", "a reset ends live sequences"),
    Goal("unknown_sequence", "a call names a sequence that is not live"),
    Goal("live_sequence", "a new sequence has the name of a live one"),
    Goal("bad_argument", "an argument is out of range"),
    Goal("unknown_block", "ref_count is asked for a block that does not exist"),
)
REFUSED = {
    "UnknownSequence": "unknown_sequence",
    "SequenceLive": "live_sequence",
    "InvalidArgument": "bad_argument",
    "UnknownSlot": "unknown_block",
}


def notice(met: Counter[str], step: Step[View, Held]) -> None:
    """Counts what has happened in this step."""
    op, size = step.op, step.held.block_size
    if isinstance(step.outcome, Refused):
        _notice_refusal(met, step)
        return
    met["shared"] += step.after.statistics.shared > 0
    match op.name:
        case "allocate":
            _notice_hit(met, step)
            met["empty_sequence"] += not op.args["tokens"]
            _notice_length(met, len(op.args["tokens"]), size)
        case "append":
            _notice_append(met, step)
        case "lookup":
            asked = set(asked_keys(op, size))
            met["wrong_index"] += op.args["skip"] > 0 and bool(asked & set(step.before.registered))
        case "register":
            keys = keys_from(step.held, op.args["sequence"], op.args["first"], op.args["blocks"])
            table = step.before.tables[op.args["sequence"]][op.args["first"] :]
            met["twin"] += any(step.before.registered.get(k, b) != b for k, b in zip(keys, table, strict=False))
            later = keys_from(step.held, op.args["sequence"], 0, len(step.held.tokens[op.args["sequence"]]))
            met["hole_filled"] += bool(set(later) & set(step.before.registered)) and step.outcome > 0
        case "fork":
            length = len(step.held.tokens[op.args["child"]])
            met["fork_mid_block"] += length % size > 0
            met["fork_shorter"] += length < step.before.lengths[op.args["sequence"]]
        case "truncate":
            met["truncate_mid_block"] += op.args["tokens"] % size > 0
        case "free" | "finish":
            table = step.before.tables[op.args["sequence"]]
            met["free_of_shared"] += any(step.after.refs[block] for block in table)
        case "reset":
            met["reset_live"] += bool(step.before.tables)
    met["physical_reuse"] += any(block in step.held_before.lives for block in taken(step))
    if op.name != "reset" and (gone := evicted(step)):
        _notice_eviction(met, step, gone)


def _notice_refusal(met: Counter[str], step: Step[View, Held]) -> None:
    op = step.op
    if step.outcome != Refused("OutOfSlots"):
        met[REFUSED[step.outcome.error]] += 1
        return
    met["evict_none_idle"] += op.name == "evict"
    met["copy_refused"] += op.name == "append" and copied_block(step) is not None and not step.before.free
    if op.name == "allocate":
        met["refused_allocation"] += 1
        met["refused_partly"] += bool(step.before.free or step.before.idle)
        asked = asked_keys(op, step.held.block_size)
        met["refused_with_hit"] += bool(run_of(asked, step.before.registered, step.held.lives))


def _notice_hit(met: Counter[str], step: Step[View, Held]) -> None:
    size = step.held.block_size
    tokens, asked = step.op.args["tokens"], asked_keys(step.op, size)
    hit = step.outcome.blocks[: step.outcome.cached // size]
    met["hit"] += bool(hit)
    met["full_prefix_hit"] += 0 < step.outcome.cached == len(tokens)
    met["idle_hit"] += any(block in step.before.idle for block in hit)
    met["partial_hit"] += 0 < len(hit) < len(asked)
    met["hole"] += any(key in step.before.registered for key in asked[len(hit) + 1 :])
    gone = len(evicted(step))
    met["hit_saved"] += gone > 0 and any(block in step.before.idle[:gone] for block in hit)


def _notice_append(met: Counter[str], step: Step[View, Held]) -> None:
    size, sequence = step.held.block_size, step.op.args["sequence"]
    before, length = step.before.lengths[sequence], step.after.lengths[sequence]
    _notice_length(met, length, size)
    met["append_to_empty"] += before == 0
    met["several_blocks"] += len(step.outcome.blocks) > 1
    met["copy_and_grow"] += bool(step.outcome.copies and step.outcome.blocks)
    for source, _ in step.outcome.copies:
        met["copy_shared" if step.after.refs[source] else "copy_registered"] += 1
    full = step.before.tables[sequence][-1:] if before % size == 0 else []
    met["full_shared_tail"] += any(step.before.refs[block] > 1 for block in full)
    mine = step.held.tokens[sequence]
    for other, table in step.after.tables.items():
        if other != sequence and table[:1] == step.after.tables[sequence][:1]:
            theirs = step.held.tokens[other]
            met["divergent"] += mine[: len(theirs)] != theirs[: len(mine)]


def _notice_length(met: Counter[str], length: int, block_size: int) -> None:
    for residue in (0, 1, -1):
        met[f"length_{residue}_mod_block"] += length > 0 and (length - residue) % block_size == 0


def _notice_eviction(met: Counter[str], step: Step[View, Held], gone: list[int]) -> None:
    met[f"eviction_{step.held.policy}"] += 1
    idle, held = step.before.idle, step.held_before
    for policy in POLICIES:
        other = held._replace(policy=policy)
        met["policies_differ"] += min(idle, key=lambda block: rank(other, block)) not in gone
    ranks = [rank(held, block)[:-1] for block in idle]
    met["tie"] += any(ranks.count(rank(held, block)[:-1]) > 1 for block in gone)
