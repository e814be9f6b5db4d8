"""Laws of kv_manager. The numbered rules are those of the contract, in reference/kv_manager/rules.py.

Each law looks at plain values. models/kv_manager calls it at the point that its statement names: settling.py between
steps, forward.py for writes and reads, refusals.py, judge.py for what one operation returns.
Those of transfers are in loading.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kvlockstep.properties.kv_manager import groups, loading
from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.properties.kv_manager.group_listener import GroupListener
from kvlockstep.properties.kv_manager.listener import Fact, Listener
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, agree, counted, law, laws_of

# The longest table that a message shows from its beginning.
WHOLE_TABLE = 12
MOST_NAMED = 4


def serving(slot: int, tables: Mapping[str, Sequence[int]], entry_size: int) -> list[str]:
    """The positions that a slot serves: "r0 position 3". An entry of a table stands for `entry_size` slots."""
    first = slot - slot % entry_size
    return [
        f"{name} position {i * entry_size + slot - first}"
        for name, table in tables.items()
        for i, entry in enumerate(table)
        if entry == first
    ]


@law(
    "kv_manager",
    needs=("prefix_cache",),
    answers=("vllm#54727", "nano-vllm#163", "vllm#12603", "LMCache#2961", "vllm#56655"),
)
def prefix_soundness(cell: Cell) -> str | None:
    """A request reads in its prefix hit exactly the KV that a cold run would have written there."""
    return str(cell) if cell.hit and cell.writer is None else None


@law("kv_manager", answers=("atlas#692", "vllm#417", "mlx-lm#1547", "sglang#35470"))
def write_isolation(cell: Cell) -> str | None:
    """A write never changes KV that another request reads."""
    if cell.writer is None or cell.own:
        return None
    return f"{cell}: {cell.writer} wrote it in this forward"


@law("kv_manager", answers=("TensorRT-LLM#15018", "mini-sglang#142", "kvcached#362"))
def content_equality(cell: Cell) -> str | None:
    """A request reads at its own tokens exactly the KV that a cold run would have written there."""
    return str(cell)


@law("kv_manager", answers=("sglang#28754", "sglang#38840", "vllm#42571"))
def no_aliasing(writers: Sequence[str], slot: int, block_size: int) -> str | None:
    """One forward never writes different content to one slot, and no slot serves two positions of one request."""
    return f"slot {slot} of block {slot // block_size} serves {' and '.join(writers)}"


@law("kv_manager", answers=("vllm#11186", "TensorRT-LLM#16280", "sglang#24745"))
def hit_bounds(cached: int, known: int, said: str = "admit") -> str | None:
    """A hit has from 0 tokens to one less than the request has, so at least one token is computed."""
    if 0 <= cached < known:
        return None
    return f"{said} returned {cached} for a request of {counted(known, 'token')}"


@law("kv_manager", answers=("mini-sglang#52", "vllm#10507", "LMCache#3130", "atlas#373"))
def eviction_safety(
    free: Collection[int], held: Collection[int], block_size: int, tables: Mapping[str, Sequence[int]], entry_size: int
) -> str | None:
    """No slot is free while a live request holds its block."""
    both = sorted({slot for slot in free if slot // block_size in held})
    if not both:
        return None
    named = [_slot_text(slot, block_size, serving(slot, tables, entry_size)) for slot in both[:MOST_NAMED]]
    named += [f"{len(both) - MOST_NAMED} more"] if len(both) > MOST_NAMED else []
    blocks = "blocks" if len({slot // block_size for slot in both}) > 1 else "block"
    return f"{' and '.join(named)} {agree(len(both), 'are')} free, and a live request holds the {blocks}"


@law("kv_manager", needs=("free_slots",), answers=("sglang#13501", "sglang#26009", "dynamo#13398"))
def no_double_free(free: Sequence[int], block_size: int) -> str | None:
    """No slot is in the free list twice."""
    if len(set(free)) == len(free):
        return None
    twice = sorted({slot for slot in free if free.count(slot) > 1})
    if len(twice) == 1:
        return f"{_slot_text(twice[0], block_size)} is in the free list more than once"
    blocks = sorted({slot // block_size for slot in twice})
    return f"slots {twice} of blocks {blocks} are in the free list more than once"


@law("kv_manager", answers=("xllm#829", "sglang#25805", "TensorRT-LLM#12834"))
def accounting(avail: int, held: int, total: int, limbo: int = 0, reserved: int = 0, unit: str = "slot") -> str | None:
    """Rule 8: `avail` plus the slots of held blocks is `total`. `avail` may leave out slots in limbo."""
    # Those in limbo may be counted as available or not; of these the `reserved` ones may not.
    least, most = total - limbo, total - reserved
    if least <= avail + held <= most:
        return None
    sums = f"avail={avail} + held={held}"
    if avail + held > most:
        kept = f" - {reserved} that transfers write" if reserved else ""
        return f"{sums} is not total={total}{kept}: {counted(avail + held - most, unit)} counted twice"
    kept = f" - limbo={limbo}" if limbo else ""
    return f"{sums} is not total={total}{kept}: {counted(least - avail - held, unit)} lost"


@law("kv_manager", answers=("sglang#13826", "sglang#10871", "sglang#37295", "LMCache#3884"))
def leak_freedom(
    avail: int, held: int, total: int, live: Sequence[str], limbo: int = 0, unit: str = "slot"
) -> str | None:
    """When no live request holds a slot, every slot is available again, except slots in limbo."""
    if held or total - limbo <= avail <= total:
        return None
    who = "no request is live"
    if live:
        who = f"{' and '.join(live)} {agree(len(live), 'are')} live and lost every {unit}"
    lost = f"{counted(total - avail, unit)} leaked" if avail < total else f"{counted(avail - total, unit)} too many"
    return f"{who}, but avail={avail} of total={total}: {lost}"


@law("kv_manager", answers=("sglang#27789", "dynamo#6536"))
def conservation(blocks: Collection[int], total: int, block_size: int, lowest: int = 0) -> str | None:
    """The manager never names more blocks than the pool has, and none below 0."""
    # `lowest`: the lowest block that was named.
    if lowest < 0:
        return f"block {lowest} has been named, and the slots of a pool are numbered from 0 on"
    if len(blocks) * block_size <= total:
        return None
    named = f"{counted(len(blocks), 'block')} of {counted(block_size, 'slot')}"
    return f"{named} {agree(len(blocks), 'have')} been named, the pool has {counted(total, 'slot')}"


@law("kv_manager", needs=("max_length",), answers=("vllm#10730",))
def table_limit(rid: str, blocks: int, most: int, max_length: int) -> str | None:
    """No table has more blocks than a request of `max_length` tokens takes, plus `lookahead_blocks`."""
    if blocks <= most:
        return None
    return f"the table of {rid} has {counted(blocks, 'block')}, but max_length={max_length} allows {most}"


@law("kv_manager", answers=("sglang#10637", "sglang#34823"))
def free_count(free_now: int, avail: int, rid: str, hit: Collection[int], block_size: int) -> str | None:
    """Free slots are among the available ones, and the next admission hits nothing in them."""
    # `hit`: the blocks of `rid`'s hit that nobody held before.
    if not 0 <= free_now <= avail:
        return f"free_now={free_now} is not within 0..avail={avail}"
    cached = len(hit) * block_size
    if free_now <= avail - cached:
        return None
    blocks = f"block{'' if len(hit) == 1 else 's'} {', '.join(map(str, sorted(hit)))}"
    return (
        f"free_now={free_now} of avail={avail}, but then {rid} hit {blocks}, which nobody held: "
        f"{counted(cached, 'slot')} {agree(cached, 'were')} cached and counted as free"
    )


@law("kv_manager", needs=("can_evict_all",), answers=("xllm#55", "sglang#4987"))
def eviction_complete(free_now: int, held: int, total: int, limbo: int = 0) -> str | None:
    """After evict_all every slot that no live request holds is free, except slots in limbo."""
    if total - held - limbo <= free_now <= total - held:
        return None
    kept = f" - limbo={limbo}" if limbo else ""
    return f"after evict_all free_now={free_now}, total={total} - held={held}{kept}"


@law("kv_manager", needs=("can_reset",), answers=("vllm#57727", "sglang#26009", "transformers#48509"))
def reset_complete(avail: int, free_now: int, total: int, limbo: int = 0) -> str | None:
    """After reset every slot is free, except slots in limbo."""
    if avail == free_now and total - limbo <= avail <= total:
        return None
    kept = f", limbo={limbo}" if limbo else ""
    return f"after reset avail={avail}, free_now={free_now}, total={total}{kept}"


@law("kv_manager", answers=("vllm#11565", "llama.cpp#10873", "FastDeploy#5544"))
def admission_honesty(needed: int, room: int, what: str) -> str | None:
    """Rule 5: the manager refuses a request only if it does not fit."""
    if needed > room:
        return None
    held = f"{room} {agree(room, 'are')} held by no live request"
    return f"{what} was refused: it needs {counted(needed, 'block')} at most, and {held}"


@law("kv_manager", answers=("TensorRT-LLM#13320", "sglang#31616"))
def coverage(allocated: int, needed: int, where: str = "", when: str = "at launch") -> str | None:
    """At launch a request has a slot for every position that its forward reads or writes, and between steps for every
    one that its next forward reads.
    """
    if allocated >= needed:
        return None
    return f"{counted(allocated, 'slot')} {when} for {counted(needed, 'position')}{where}"


@law("kv_manager", answers=("atlas#373", "Megatron-LM#6091", "vllm#11562", "xinfer#405"))
def atomicity(before: int | Sequence[int], after: int | Sequence[int], what: str, of: str) -> str | None:
    """A refused admission, reservation or fork changes neither `avail` nor the table of a live request."""
    if before == after:
        return None
    shown = (before, after) if isinstance(before, int) or isinstance(after, int) else _from_difference(before, after)
    return f"{what} was refused, but {of} went from {shown[0]} to {shown[1]}"


@law("kv_manager", answers=("rule 12", "sglang#26796"))
def purity(first: object, second: object, what: str) -> str | None:
    """Queries change nothing: avail, free_now, free_slots and slots return the same when asked again."""
    return None if first == second else f"{what} returned {first}, then {second}, with only queries between"


@law(
    "kv_manager",
    needs=("event_listener",),
    answers=("sglang#14934", "sglang#24568", "vllm#55092", "tokenspeed#87"),
)
def event_consistency(listener: Listener | GroupListener, fact: Fact) -> str | None:
    """A listener that follows the events can predict every hit exactly."""
    return listener.contradiction(fact)


def _slot_text(slot: int, block_size: int, serves: Sequence[str] = ()) -> str:
    return f"slot {slot} of block {slot // block_size}" + (f" ({', '.join(serves)})" if serves else "")


def _from_difference(before: Sequence[int], after: Sequence[int]) -> tuple[Sequence[int] | str, Sequence[int] | str]:
    """Two tables as a message shows them: whole if they are short, else from the first difference."""
    if max(len(before), len(after)) <= WHOLE_TABLE:
        return before, after
    differ = (i for i, (b, a) in enumerate(zip(before, after, strict=False)) if b != a)
    same = next(differ, min(len(before), len(after)))
    left, right = (f"{list(table[same : same + WHOLE_TABLE])} from entry {same} on" for table in (before, after))
    return left, right


LAWS = (*laws_of(globals()), *laws_of(vars(groups)), *laws_of(vars(loading)), ERROR_CONTRACT, TERMINATION)
