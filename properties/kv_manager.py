"""Laws of kv_manager. The numbered rules are those of the request-level contract, docs/kv_manager.md.

Each law looks at plain values; the judge in models/kv_judge.py calls it at the point that its statement names.
`Cell` is one slot as a request reads it: what stands there, what must, and who wrote it in this forward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from kvlockstep.properties.kv_events import Hit, Listener, Room
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, law, laws_of
from kvlockstep.reference.contracts import Event


class Cell(NamedTuple):
    """Position `position` of a request, read from `slot`: `got` stands there, `want` must.

    `hit`: the position was a prefix hit. `writer`: who wrote the slot in this forward. `own`: the reader did.
    """

    position: int
    slot: int
    got: str
    want: str
    hit: bool
    own: bool
    writer: str | None

    def __str__(self) -> str:
        return f"position {self.position} (slot {self.slot}) holds {self.got}, not {self.want}"


@law(
    "kv_manager",
    needs=("prefix_cache",),
    answers=("vllm#54727", "nano-vllm#163", "vllm#12603", "LMCache#2961", "vllm#56655"),
)
def prefix_soundness(cell: Cell) -> str | None:
    """What a request reads of its prefix hit is what a cold run would have written there."""
    return str(cell) if cell.hit and cell.writer is None else None


@law("kv_manager", answers=("atlas#692", "vllm#417", "mlx-lm#1547", "sglang#35470"))
def write_isolation(cell: Cell) -> str | None:
    """A write changes nothing that another request reads."""
    if cell.writer is None or cell.own:
        return None
    return f"{cell}: {cell.writer} wrote it in this forward"


@law("kv_manager", answers=("TensorRT-LLM#15018", "mini-sglang#142", "kvcached#362"))
def content_equality(cell: Cell) -> str | None:
    """What a request reads of its own tokens is what a cold run would have written there."""
    return str(cell)


@law("kv_manager", answers=("sglang#28754", "sglang#38840", "vllm#42571"))
def no_aliasing(writers: Sequence[str], slot: int) -> str | None:
    """No slot is written twice with different content in one forward, nor serves one request at two positions."""
    return f"slot {slot} serves {' and '.join(writers)}"


@law("kv_manager", answers=("vllm#11186", "TensorRT-LLM#16280", "sglang#24745"))
def hit_bounds(cached: object, known: int) -> str | None:
    """A hit is a number of tokens from 0 to one less than the request has: one at least is computed."""
    if isinstance(cached, int) and not isinstance(cached, bool) and 0 <= cached < known:
        return None
    return f"admit answered {cached!r} cached tokens for a request of {known}"


@law("kv_manager", answers=("mini-sglang#52", "vllm#10507", "LMCache#3130", "atlas#373"))
def eviction_safety(free: Collection[int], held: Collection[int], block_size: int) -> str | None:
    """A slot whose block a live request holds is never free."""
    both = sorted(slot for slot in free if slot // block_size in held)
    return f"slots {both} are free, and held by a live request" if both else None


@law("kv_manager", needs=("free_slots",), answers=("sglang#13501", "sglang#26009", "dynamo#13398"))
def no_double_free(free: Sequence[int]) -> str | None:
    """No slot is free twice."""
    twice = sorted({slot for slot in free if free.count(slot) > 1}) if len(set(free)) < len(free) else []
    return f"slots {twice} stand in the free list more than once" if twice else None


@law("kv_manager", answers=("xllm#829", "sglang#25805", "TensorRT-LLM#12834"))
def accounting(avail: int, held: int, total: int) -> str | None:
    """Rule 8: available slots and the slots of held blocks add up to the total."""
    if avail + held == total:
        return None
    kind = "lost" if avail + held < total else "counted twice"
    return f"avail={avail} + held={held} is not total={total}: {abs(total - avail - held)} slots {kind}"


@law("kv_manager", answers=("sglang#13826", "sglang#10871", "sglang#37295", "LMCache#3884"))
def leak_freedom(avail: int, held: int, total: int) -> str | None:
    """With no live request everything is available again."""
    if held or avail == total:
        return None
    return f"no request is live, but avail={avail} of total={total}: {total - avail} slots leaked"


@law("kv_manager", answers=("sglang#27789", "dynamo#6536"))
def conservation(blocks: Collection[int], total: int, block_size: int) -> str | None:
    """No more blocks are ever named than the pool has."""
    if len(blocks) * block_size <= total:
        return None
    return f"{len(blocks)} blocks of {block_size} slots have been named, the pool has total={total} slots"


@law("kv_manager", answers=("sglang#10637", "sglang#34823"))
def free_count(free_now: int, avail: int, hit: int) -> str | None:
    """What is free without eviction is part of what is available, and holds nothing that the next admission hits."""
    if not 0 <= free_now <= avail:
        return f"free_now={free_now} is not within 0..avail={avail}"
    if free_now <= avail - hit:
        return None
    return f"free_now={free_now} of avail={avail}, but then {hit} slots were hit that nobody held: they were not free"


@law("kv_manager", needs=("can_evict_all",), answers=("xllm#55", "sglang#4987"))
def eviction_complete(free_now: int, held: int, total: int) -> str | None:
    """After evict_all everything that no live request holds is free."""
    return None if free_now == total - held else f"after evict_all free_now={free_now}, total={total} - held={held}"


@law("kv_manager", needs=("can_reset",), answers=("vllm#57727", "sglang#26009", "transformers#48509"))
def reset_complete(avail: int, free_now: int, total: int) -> str | None:
    """After reset everything is free."""
    return None if avail == free_now == total else f"after reset avail={avail}, free_now={free_now}, total={total}"


@law("kv_manager", answers=("vllm#11565", "llama.cpp#10873", "FastDeploy#5544"))
def admission_honesty(needed: int, room: int, what: str) -> str | None:
    """Rule 5: a request is refused only if it truly does not fit."""
    return f"{what} was refused: it needs {needed} blocks at most, and {room} are not held" if needed <= room else None


@law("kv_manager", answers=("TensorRT-LLM#13320", "sglang#31616"))
def coverage(allocated: int, needed: int) -> str | None:
    """Acceptance means it works: at launch a request owns a slot for every position it is about to write."""
    return None if allocated >= needed else f"{allocated} slots at launch for {needed} positions"


@law("kv_manager", answers=("atlas#373", "Megatron-LM#6091", "vllm#11562", "xinfer#405"))
def atomicity(before: int, after: int, what: str) -> str | None:
    """A refused admission, reservation or fork leaves avail as it was."""
    return None if before == after else f"{what} was refused, but avail went from {before} to {after}"


@law("kv_manager", answers=("rule 12", "sglang#26796"))
def purity(first: object, second: object, what: str) -> str | None:
    """Asking changes nothing: avail, free_now, free_slots and slots answer the same when asked again."""
    return None if first == second else f"{what} answered {first}, then {second}, with nothing but questions between"


@law(
    "kv_manager",
    needs=("event_listener",),
    answers=("sglang#14934", "sglang#24568", "vllm#55092", "tokenspeed#87"),
)
def event_consistency(listener: Listener, fact: Event | Hit | Room) -> str | None:
    """Whoever listens to the events knows what a request will hit: no block less, no block more."""
    return listener.contradiction(fact)


LAWS = (*laws_of(globals()), ERROR_CONTRACT, TERMINATION)
