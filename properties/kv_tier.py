"""Laws of kv_tier, over one answer or one look at a time, beside what the answers so far imply.

Nothing is held against a policy: which chunk is evicted is the tier's own business. What it says of it is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, agree, counted, law, laws_of
from kvlockstep.reference.kv_tier.contract import HIT, MISS, PENDING, Key


class Fate(StrEnum):
    """Fate of a key, by the answers so far. FORGOTTEN: its store was in flight at a reset; CUT: at a crash."""

    ABSENT = "was never stored"
    STORING = "is still being stored"
    STORED = "is stored"
    DAMAGED = "is stored, and damaged"
    FAILED = "is a chunk whose store failed"
    EVICTED = "was evicted"
    LOST = "was found damaged"
    RESET = "was there before the reset"
    FORGOTTEN = "was in flight at the reset"
    CUT = "was in flight at the crash"


class Looked(NamedTuple):
    """The answer of one lookup. `reopened`: the chunk was stored before the process was ended and opened again."""

    key: Key
    answer: str
    fate: Fate
    pending_visible: bool
    reopened: bool


class Planned(NamedTuple):
    """A store that was accepted. The rest is how things were before it.

    `chunks` has the unit of each stored chunk; `held` the units of plans in flight and of pins; `optional` the offered
    keys that the plan may have or not; `spared` those that must not be evicted; `free` how many units were free.
    """

    offered: Sequence[Key]
    units: Sequence[tuple[Key, int]]
    evicted: Sequence[Key]
    chunks: Mapping[Key, int]
    storing: frozenset[Key]
    held: frozenset[int]
    optional: frozenset[Key]
    free: int
    total: int
    batch: int
    spared: Sequence[Key]


class Refusal(NamedTuple):
    """A store that was refused: how many of its keys were new, how many units it could have had."""

    new: int
    room: int


class Loaded(NamedTuple):
    """A load right behind hits of all its keys: the keys with a unit in its plan, None if it was refused."""

    keys: Sequence[Key]
    planned: Sequence[Key] | None


class Pool(NamedTuple):
    """The units now. The first two fields are the tier's answers, the others follow from all answers so far.

    `cached`: units of stored chunks; `held`: units of plans in flight and of pins; `busy`: whether there are any.
    """

    free: Sequence[int]
    avail: int
    cached: frozenset[int]
    held: frozenset[int]
    total: int

    @property
    def owed(self) -> set[int]:
        """The units that have to be free."""
        return set(range(self.total)) - self.cached - self.held


class Read(NamedTuple):
    """One chunk of a load: what it reads, and what was stored. `moment`: "starts" or "ends"."""

    key: Key
    unit: int
    found: object
    stored: object
    moment: str


class Bytes(NamedTuple):
    """The bytes of one chunk, as the tier hands them out."""

    key: Key
    data: bytes | None
    stored: bytes
    damaged: bool


class Announced(NamedTuple):
    """The keys that can be hit: by the tier's events, and by its answers."""

    heard: frozenset[Key]
    stored: frozenset[Key]


def named(keys: Sequence[Key] | frozenset[Key]) -> str:
    """Keys as words of a sentence: 3, 4/7 with an extra key of 7."""
    return ", ".join(f"{k.hash}" if k.extra_key is None else f"{k.hash}/{k.extra_key}" for k in keys) or "none"


@law("kv_tier", answers=("LMCache#3130", "LMCache#2961", "vllm#45704"))
def visible_when_written(looked: Looked) -> str | None:
    """A lookup answers "hit" only of a chunk whose store has succeeded, "pending" only while its store is in flight."""
    key, answer, fate, pending_visible, _ = looked
    if answer == HIT and fate in (Fate.ABSENT, Fate.STORING):
        return f"lookup of {named([key])} answered hit, but it {fate}"
    if answer == PENDING and fate is not Fate.STORING:
        return f"lookup of {named([key])} answered pending, but it {fate}"
    if answer == MISS and fate is Fate.STORING and pending_visible:
        return f"lookup of {named([key])} answered miss, but it {fate}"
    return None


@law("kv_tier", answers=("sglang#27108", "LMCache#5151", "vllm#7577"))
def failure_visible(looked: Looked) -> str | None:
    """A chunk whose store failed is never a hit."""
    if looked.answer == HIT and looked.fate is Fate.FAILED:
        return f"lookup of {named([looked.key])} answered hit, but it {looked.fate}"
    return None


@law("kv_tier", answers=("vllm#47235", "vllm#42289"))
def evicted_exact(seen: Looked | Planned) -> str | None:
    """A chunk that a store says it evicted cannot be hit any more. Every other one can, and keeps its unit."""
    if isinstance(seen, Looked):
        if seen.answer == HIT and seen.fate in (Fate.EVICTED, Fate.LOST):
            return f"lookup of {named([seen.key])} answered hit, but it {seen.fate}"
        if seen.answer == MISS and seen.fate is Fate.STORED and not seen.reopened:
            return f"lookup of {named([seen.key])} answered miss, but it {seen.fate}, and no eviction was reported"
        return None
    if unknown := [key for key in seen.evicted if key not in seen.chunks]:
        return f"store evicted {named(unknown)}, which was not stored"
    taken = {unit for _, unit in seen.units}
    kept = [key for key, unit in seen.chunks.items() if unit in taken and key not in seen.evicted]
    return f"store took the unit of {named(kept[:1])}, and does not say that it evicted it" if kept else None


@law("kv_tier", answers=("sglang#4987",))
def eviction_bounded(planned: Planned) -> str | None:
    """A store evicts no more chunks than it lacks free units, rounded up to `evict_batch`."""
    lacking = max(0, len(planned.units) - planned.free)
    most = -(-lacking // planned.batch) * planned.batch
    if len(planned.evicted) > most:
        chunks, free = counted(len(planned.units), "chunk"), counted(planned.free, "free unit")
        return f"store of {chunks} with {free} evicted {counted(len(planned.evicted), 'chunk')}"
    return None


@law("kv_tier", answers=("LMCache#987", "LMCache#3130", "sglang#28468", "vllm#42289"))
def pinned(seen: Planned | Pool) -> str | None:
    """A unit that a plan in flight uses, or a pin holds, is not evicted, not free, and not given to another store."""
    if isinstance(seen, Pool):
        if both := sorted(seen.held.intersection(seen.free)):
            return f"unit {both[0]} is free, but a plan in flight or a pin holds it"
        return None
    if gone := [key for key in seen.evicted if seen.chunks.get(key) in seen.held]:
        return f"store evicted {named(gone)}, which a plan in flight or a pin holds"
    if taken := [unit for _, unit in seen.units if unit in seen.held]:
        return f"store took unit {taken[0]}, which a plan in flight or a pin holds"
    return None


@law("kv_tier", answers=("vllm#42571", "sglang#28468"))
def no_aliasing(planned: Planned) -> str | None:
    """No two chunks of a store get one unit, and each gets one of the tier's."""
    units = [unit for _, unit in planned.units]
    if twice := [unit for unit in units if units.count(unit) > 1]:
        return f"store gave unit {twice[0]} to two chunks"
    foreign = [unit for unit in units if not 0 <= unit < planned.total]
    return f"store gave out unit {foreign[0]}, and there are {planned.total}" if foreign else None


@law("kv_tier", answers=("vllm#47235", "LMCache#5151"))
def plan_exact(planned: Planned) -> str | None:
    """A store plans a unit for each offered chunk that is not there yet, and for no other; it evicts none of them."""
    # What is not spared may be evicted for another chunk of the same store, and stored again by it.
    optional = planned.optional.union(planned.evicted).difference(planned.spared)
    there = planned.storing.union(planned.chunks) - optional
    got = [key for key, _ in planned.units]
    if extra := [key for key in got if key not in planned.offered or key in there]:
        return f"store planned {named(extra)}, which was {'there' if extra[0] in there else 'not offered'}"
    if left := [key for key in planned.offered if key not in got and key not in there | optional]:
        return f"store left out {named(left)}, which was not there"
    if gone := [key for key in planned.evicted if key in planned.spared]:
        return f"store evicted {named(gone)}, which was offered to it"
    return None


@law("kv_tier", answers=("llama.cpp#10873", "sglang#36770"))
def refusal_honest(refusal: Refusal) -> str | None:
    """A store is refused only if its new chunks do not fit into what is free or may be evicted for them."""
    if refusal.new <= refusal.room:
        return f"store of {counted(refusal.new, 'new chunk')} was refused, with room for {refusal.room}"
    return None


@law("kv_tier", answers=("vllm#42289", "LMCache#2898"))
def backed(loaded: Loaded) -> str | None:
    """A load right behind hits of all its keys is accepted, with a unit for each."""
    if loaded.planned is None:
        return f"load of {named(loaded.keys)} was refused, right behind hits of all of them"
    if set(loaded.planned) != set(loaded.keys):
        return f"load of {named(loaded.keys)} planned {named(loaded.planned)}"
    return None


@law("kv_tier", answers=("sglang#27631", "TensorRT-LLM#9056", "LMCache#4921", "LMCache-Ascend#270"))
def content_equality(read: Read) -> str | None:
    """A load reads what was stored under its key, from its start to its end."""
    if read.found != read.stored:
        what = f"load of {named([read.key])} reads unit {read.unit}"
        return f"{what}, which holds {read.found} when it {read.moment}, not {read.stored}"
    return None


@law("kv_tier", answers=("LMCache#987", "LMCache#2559", "sglang#26009"))
def no_double_free(pool: Pool) -> str | None:
    """No unit is free twice, and only units of the tier are."""
    free = list(pool.free)
    if twice := [unit for i, unit in enumerate(free) if unit in free[:i]]:
        return f"unit {twice[0]} is free twice"
    foreign = [unit for unit in free if not 0 <= unit < pool.total]
    return f"unit {foreign[0]} is free, and there are {pool.total}" if foreign else None


@law("kv_tier", answers=("LMCache#1130", "LMCache#2559", "sglang#13501"))
def tier_accounting(pool: Pool) -> str | None:
    """Each unit is free, or a chunk's, or of a plan in flight; avail counts all but what plans and pins hold."""
    if lost := sorted(pool.owed.difference(pool.free)):
        return f"unit {lost[0]} is not free, and no chunk or plan has it"
    if early := sorted(set(pool.free) - pool.owed):
        return f"unit {early[0]} is free, but it is the unit of a stored chunk"
    owed = pool.total - len(pool.held)
    if pool.avail != owed:
        held, units = len(pool.held), counted(pool.total, "unit")
        return f"avail={pool.avail}, but {held} of {units} {agree(held, 'are')} held, so it must be {owed}"
    return None


@law("kv_tier", answers=("LMCache#3884", "LMCache#2785", "dynamo#3730"))
def quiescence(pool: Pool) -> str | None:
    """With no plan in flight and no pin, every unit is available."""
    if not pool.held and pool.avail < pool.total:
        units = counted(pool.total, "unit")
        return f"nothing is in flight or pinned, but only {pool.avail} of {units} {agree(pool.avail, 'are')} available"
    return None


@law("kv_tier", answers=("LMCache#2559", "LMCache#1130", "sglang#26009"))
def idempotent(before: Pool, after: Pool) -> str | None:
    """Completing a plan that is not in flight, or releasing an owner without pins, changes nothing."""
    if sorted(before.free) != sorted(after.free) or before.avail != after.avail:
        shown = [f"{sorted(pool.free)}, avail={pool.avail}" for pool in (before, after)]
        return f"there was nothing to do, but the free units went from {shown[0]} to {shown[1]}"
    return None


@law("kv_tier", needs=("can_reset",), answers=("vllm#57727", "sglang#26792", "transformers#31917"))
def reset_complete(seen: Looked | Pool) -> str | None:
    """After a reset nothing stored before is a hit, and all is free but what plans in flight use."""
    if isinstance(seen, Pool):
        left = sorted(seen.owed.difference(seen.free))
        return f"unit {left[0]} is not free after the reset" if left else None
    if seen.answer == HIT and seen.fate in (Fate.RESET, Fate.FORGOTTEN):
        return f"lookup of {named([seen.key])} answered hit, but it {seen.fate}"
    return None


@law("kv_tier", needs=("announces",), answers=("llm-d-kv-cache#593", "vllm#55092"))
def event_consistency(announced: Announced) -> str | None:
    """By the events, exactly the stored chunks can be hit."""
    if missing := announced.stored - announced.heard:
        return f"no event says that {named(missing)} is stored"
    if stale := announced.heard - announced.stored:
        return f"by the events {named(stale)} is stored, but it is gone"
    return None


@law("kv_tier", needs=("holds_bytes",), answers=("LMCache#2898",))
def whole_or_none(read: Bytes) -> str | None:
    """The tier hands out the whole bytes that were stored under the key, or None if they are damaged."""
    if read.data is None and not read.damaged:
        return f"read of {named([read.key])} answered None, and nothing had damaged it"
    if read.data is not None and read.data != read.stored:
        what = "a part of its bytes" if read.stored.startswith(read.data) else "other bytes than were stored"
        return f"read of {named([read.key])} answered {what}"
    return None


@law("kv_tier", needs=("can_reopen",), answers=("a checksum of each entry on disk: antirez/ds4#146",))
def crash_consistency(seen: Looked | Pool) -> str | None:
    """After a crash what was stored is a hit, in its unit, and what was in flight is none."""
    if isinstance(seen, Pool):
        lost, kept = sorted(seen.cached.intersection(seen.free)), sorted(seen.owed.difference(seen.free))
        if lost or kept:
            unit, chunk = (
                (lost or kept)[0],
                "the chunk that was stored there is gone" if lost else "no chunk was stored",
            )
            return f"unit {unit} is {'' if lost else 'not '}free after the crash: {chunk}"
        return None
    if seen.answer == HIT and seen.fate is Fate.CUT:
        return f"lookup of {named([seen.key])} answered hit, but it {seen.fate}"
    if seen.answer == MISS and seen.fate is Fate.STORED and seen.reopened:
        return f"lookup of {named([seen.key])} answered miss, but it was stored before the crash"
    return None


LAWS = (*laws_of(globals()), ERROR_CONTRACT, TERMINATION)
