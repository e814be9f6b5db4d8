"""Laws of decode_graphs, over views of the device (`View`) and what the calls so far imply (`Held`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.properties.law import EVERYWHERE, Refused, Step, agree, counted, law, laws_of
from kvlockstep.reference.decode_graphs.contract import DONE, FULL, NO_BLOCK, REFUSED


class View(NamedTuple):
    """`tables` has NO_BLOCK where a row has no block; `free` is bottom first; `memory` has a stamp for each slot."""

    tables: list[list[int]]
    lengths: list[int]
    free: list[int]
    num_free: int
    memory: list[int]


class Held(NamedTuple):
    """`fresh`: sizes captured since the table moved; `stale`: those before; `lanes`: what collect must return."""

    block_size: int
    fresh: frozenset[int]
    stale: frozenset[int]
    lanes: tuple[tuple[int, tuple[int, ...]], ...]


def slots_of(view: View, row: int, block_size: int) -> list[int]:
    """The slots of a row's tokens by the table."""
    blocks = view.tables[row]
    return [blocks[i // block_size] * block_size + i % block_size for i in range(view.lengths[row])]


def decoded(
    view: View, rows: Sequence[int], stamps: Sequence[int], block_size: int
) -> tuple[View, tuple[tuple[int, tuple[int, ...]], ...]]:
    """Returns the view after a decode step of these rows by the current tables, and each lane's status and context."""
    tables, lengths = [list(blocks) for blocks in view.tables], list(view.lengths)
    free, memory, statuses = list(view.free), list(view.memory), []
    for row, stamp in zip(rows, stamps, strict=True):
        position = lengths[row]
        nth, offset = divmod(position, block_size)
        if nth == len(tables[row]):
            statuses.append(FULL)
        elif not offset and not free:
            statuses.append(REFUSED)
        else:
            if not offset:
                tables[row][nth] = free.pop()
            memory[tables[row][nth] * block_size + offset] = stamp
            lengths[row] += 1
            statuses.append(DONE)
    after = View(tables, lengths, free, len(free), memory)
    contexts = (tuple(memory[slot] for slot in slots_of(after, row, block_size)) for row in rows)
    return after, tuple(zip(statuses, contexts, strict=True))


@law("decode_graphs", answers=("seed 003: acquire and release between captures",))
def capture_refuses(step: Step[View, Held]) -> str | None:
    """While a capture is active every other operation is refused as CaptureActive."""
    if step.op.name == "capture" and not isinstance(step.outcome, Refused):
        for call, answer in zip(step.op.args["tried"], step.outcome, strict=True):
            if answer != "CaptureActive":
                return f"during a capture {call} returned {answer}"
    return None


@law("decode_graphs", answers=("Megatron-LM#6091",))
def atomicity(step: Step[View, Held]) -> str | None:
    """A refused operation changes nothing; neither does capture or collect."""
    quiet = isinstance(step.outcome, Refused) or step.op.name in ("capture", "collect")
    if quiet and step.before != step.after:
        return f"{step.op.name} should have changed nothing"
    return None


@law("decode_graphs", answers=("vllm#42571", "seed 003: a block is handed out twice"))
def no_aliasing(step: Step[View, Held]) -> str | None:
    """No block is twice in the tables, twice on the free stack, or both free and in a table."""
    seen: set[int] = set()
    for block in (*step.after.free, *(b for blocks in step.after.tables for b in blocks if b != NO_BLOCK)):
        if block in seen:
            return f"block {block} has two holders, or is free and held"
        seen.add(block)
    return None


@law("decode_graphs", answers=("kvcached#401", "dynamo#6536"))
def conservation(step: Step[View, Held]) -> str | None:
    """Every block is free or in a table, whatever a replay took."""
    there = {*step.after.free, *(b for blocks in step.after.tables for b in blocks if b != NO_BLOCK)}
    blocks = len(step.after.memory) // step.held.block_size
    lost = sorted(set(range(blocks)) - there)
    foreign = sorted(there - set(range(blocks)))
    if lost or foreign:
        return f"block {lost[0]} is lost" if lost else f"block {foreign[0]} does not exist"
    return None


@law("decode_graphs", answers=("vllm#43810", "sglang#26292", "TensorRT-LLM#13278"))
def padding_isolation(step: Step[View, Held]) -> str | None:
    """A replay writes only the slots of its rows' new tokens; padded lanes change nothing."""
    if step.op.name != "replay" or isinstance(step.outcome, Refused):
        return None
    size, rows = step.held.block_size, step.op.args["rows"]
    new = {slot for row in rows for slot in slots_of(step.after, row, size)[len(slots_of(step.before, row, size)) :]}
    for slot, (old, now) in enumerate(zip(step.before.memory, step.after.memory, strict=True)):
        if old != now and slot not in new:
            return f"replay changed slot {slot} from {old} to {now}, which is not a new token of rows {rows}"
    for row, (was, length) in enumerate(zip(step.before.lengths, step.after.lengths, strict=True)):
        if was != length and row not in rows:
            return f"replay took row {row}, which it was not given, from {counted(was, 'token')} to {length}"
    return None


@law("decode_graphs", answers=("seed 003: tables are read inside of captured graphs", "Megatron-LM#6852"))
def graph_contract(step: Step[View, Held]) -> str | None:
    """A replay does what an eager step would do now: it reads the current tables and lengths."""
    if step.op.name != "replay" or isinstance(step.outcome, Refused):
        return None
    wanted, _ = decoded(step.before, step.op.args["rows"], step.op.args["stamps"], step.held.block_size)
    for name in ("tables", "lengths", "memory", "free"):
        if getattr(step.after, name) != getattr(wanted, name):
            return f"replay left {name} {getattr(step.after, name)}, but an eager step leaves {getattr(wanted, name)}"
    return None


@law("decode_graphs", answers=("imp#1648", "Megatron-LM#6852"))
def no_stale_graph(step: Step[View, Held]) -> str | None:
    """A replay is accepted if and only if its size was captured since the table last moved."""
    if step.op.name != "replay":
        return None
    lanes = step.op.args["lanes"]
    fresh = lanes in step.held_before.fresh
    if not isinstance(step.outcome, Refused) and not fresh:
        return f"a graph of {lanes} lanes was replayed, but not captured since the table moved"
    if step.outcome in (Refused("StaleGraph"), Refused("NotCaptured")) and fresh:
        return f"a graph of {lanes} lanes was refused as {step.outcome.error}, though it was captured"
    return None


@law("decode_graphs", answers=("sglang#26292",))
def content_equality(step: Step[View, Held]) -> str | None:
    """collect returns each lane's status in the last replay, and the stamps that its row's slots had then."""
    if step.op.name != "collect" or isinstance(step.outcome, Refused):
        return None
    for lane, (got, owed) in enumerate(zip(step.outcome, step.held_before.lanes, strict=True)):
        if (got[0], tuple(got[1])) != owed:
            return f"lane {lane} returned {got}, not {owed}"
    return None


@law("decode_graphs", answers=("seed 003: the host mirrors the count of the device",))
def accounting(step: Step[View, Held]) -> str | None:
    """The host's num_free is the number of blocks on the device's stack, even after a replay took some."""
    if step.after.num_free != len(step.after.free):
        free = len(step.after.free)
        return f"num_free={step.after.num_free}, but {counted(free, 'block')} {agree(free, 'are')} on the stack"
    return None


@law("decode_graphs", answers=("llama.cpp#10873",))
def admission_honesty(step: Step[View, Held]) -> str | None:
    """admit is refused for lack of blocks only if too few are free."""
    if step.op.name == "admit" and step.outcome == Refused("OutOfSlots"):
        needed = -(-len(step.op.args["stamps"]) // step.held.block_size)
        if needed <= len(step.before.free):
            refused = f"{counted(needed, 'block')} {agree(needed, 'were')} refused"
            return f"{refused} with {len(step.before.free)} free"
    return None


LAWS = (*laws_of(globals()), *EVERYWHERE)
