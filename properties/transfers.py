"""Laws of transfers: what is copied between the pool and the tiers, and when. kv_manager takes them over from here.

Each looks at plain values; models/requests/transfers/ calls it where a transfer starts, lands or is waited for,
and between the operations. `Source` is what a transfer is about to read, as `Cell` is what a request reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvlockstep.properties.kv_manager.cell import Cell
from kvlockstep.properties.law import agree, counted, law

CONTRACT = "kv_scheduler"

# What the judge writes into a target: until its transfer lands, and where it failed.
NOT_LANDED = "what a transfer has not written yet"
LOST = "what a failed transfer left"


class Source(NamedTuple):
    """One place that a transfer reads, and the contents of its slots in words."""

    transfer: str
    place: str
    got: str

    def __str__(self) -> str:
        return f"{self.transfer} reads {self.place}, which holds {self.got}"


@law(CONTRACT, needs=("tiers",), answers=("ATOM#2146", "TensorRT-LLM#9056", "sglang#28468", "sglang#27631"))
def source_stable(transfer: str, place: str, changed_by: str) -> str | None:
    """What a transfer reads stands still from its start until it has landed."""
    return f"{transfer} reads {place}, and {changed_by} before it has landed" if changed_by else None


@law(CONTRACT, needs=("tiers",), answers=("vllm#46951", "vllm#45704"))
def transfer_isolation(writer: str, block: int, transfer: str) -> str | None:
    """No batch writes into a block of a transfer that has not landed, unless the worker waits for it first."""
    return f"{writer} writes block {block} in the batch, and {transfer} has not landed" if transfer else None


@law(CONTRACT, needs=("tiers",), answers=("vllm#32255", "sglang#28468"))
def target_owned(transfer: str, place: str, owner: str) -> str | None:
    """The target of a transfer belongs to it until it has landed: not free, not cached, and no other one's target."""
    return f"{transfer} writes {place}, which is {owner}" if owner else None


@law(CONTRACT, needs=("tiers",), answers=("LMCache-Ascend#270", "TensorRT-LLM#10060"))
def load_before_read(read: Cell | Source) -> str | None:
    """Nobody reads what a transfer has still to write."""
    return str(read) if read.got == NOT_LANDED else None


@law(CONTRACT, needs=("tiers", "fails"), answers=("LMCache#5151", "vllm#7577", "sglang#27108"))
def failure_visible(read: Cell | Source) -> str | None:
    """What a failed transfer should have written is never read: it is no hit, in no tier."""
    return str(read) if read.got == LOST else None


@law(CONTRACT, needs=("tiers",), answers=("vllm#42289",))
def backed(transfer: str, place: str, lacks: str) -> str | None:
    """What a load reads is there when it starts: stored, and kept since it was promised."""
    return f"{transfer} reads {place}, which {lacks}" if lacks else None


@law(CONTRACT, needs=("tiers",), answers=("LMCache#2559", "dynamo#3730", "sglang#13501"))
def tier_accounting(tier: str, units: Sequence[int], total: int) -> str | None:
    """Each unit of a tier is free, cached or being stored to, and only one of these."""
    if len(set(units)) != len(units):
        twice = min(unit for unit, times in Counter(units).items() if times > 1)
        return f"unit {twice} of {tier} stands twice in what is free, cached and storing"
    if len(units) == total:
        return None
    return f"free, cached and storing are {counted(len(units), 'unit')} of {tier}, which has {total}"


@law(CONTRACT, needs=("tiers",))
def stream_order(transfer: str, block: int, batch: Sequence[str]) -> str | None:
    """A load does not write what a batch in flight reads or writes, unless the device orders it behind that batch."""
    return f"{transfer} writes block {block}, and the batch of {', '.join(batch)} is in flight" if batch else None


@law(CONTRACT, needs=("tiers",), answers=("vllm#49902", "dynamo#3730"))
def transfer_progress(rid: str, loads: int, most: int) -> str | None:
    """A request whose loads have ended runs: it is not loaded for again and again while nothing else happens."""
    return f"{rid} is loaded for {counted(loads, 'time')}, and nothing is computed in between" if loads > most else None


@law(CONTRACT, needs=("tiers", "moves"))
def starvation(items: int, others: Sequence[str], overdue: Sequence[str]) -> str | None:
    """A move keeps nobody waiting but whom it is for or brings a block to, and these no longer than `patience` says."""
    if items or not (others or overdue):
        return None
    if others:
        return f"an empty batch, though only moves are in flight, and none of them is for {', '.join(others)}"
    return f"an empty batch, though {', '.join(overdue)} may wait for a move no longer"


@law(CONTRACT, needs=("tiers",), answers=("LMCache#2559", "vllm-ascend#14283", "vllm#32255"))
def quiescence(pinned: Sequence[str], limbo: int) -> str | None:
    """With no request, no batch and no transfer left nothing is pinned, and no slot is in limbo."""
    if pinned:
        return f"nothing is live or in flight, and {pinned[0]} is pinned"
    return (
        f"nothing is live or in flight, and {counted(limbo, 'slot')} {agree(limbo, 'are')} in limbo" if limbo else None
    )


@law(CONTRACT, needs=("tiers", "durable"), answers=("vllm#50297",))
def delivery(rid: str, missing: Sequence[int], block_size: int, where: str = "") -> str | None:
    """When a request ends by itself, each full block that its next token would read has been stored."""
    if not missing:
        return None
    first = missing[0] * block_size
    return f"{rid} has ended, and the KV of its positions {first} to {first + block_size}{where} was never stored"
