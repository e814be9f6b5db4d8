"""Laws of a kv_manager with tiers: those of transfers, as kv_scheduler has them, and what an admission promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvlockstep.properties import transfers
from kvlockstep.properties.law import counted, law

CONTRACT = "kv_manager"

source_stable = replace(transfers.source_stable, contract=CONTRACT)
transfer_isolation = replace(transfers.transfer_isolation, contract=CONTRACT)
target_owned = replace(transfers.target_owned, contract=CONTRACT)
load_before_read = replace(transfers.load_before_read, contract=CONTRACT)
failure_visible = replace(transfers.failure_visible, contract=CONTRACT)
backed = replace(transfers.backed, contract=CONTRACT)
tier_accounting = replace(transfers.tier_accounting, contract=CONTRACT)
transfer_progress = replace(transfers.transfer_progress, contract=CONTRACT)
quiescence = replace(transfers.quiescence, contract=CONTRACT)


@law(CONTRACT, needs=("tiers",), answers=("dynamo#3730", "vllm#32255"))
def load_ends(rid: str, waits: bool, unheard: Sequence[str]) -> str | None:
    """A request that loads is ready at the latest when the manager has heard of the end of every transfer."""
    return f"{rid} still waits for its load, and no transfer is in flight" if waits and not unheard else None


@law(CONTRACT, needs=("tiers", "moves"))
def fetch_ends(rid: str, moves: Sequence[str], told: int, patience: int | None) -> str | None:
    """A request is told to wait for a fetch while a move is in flight only, and no more often than `patience` says."""
    if not moves:
        return f"{rid} is told to wait for a fetch, and no move is in flight"
    if patience is None or told <= patience:
        return None
    return f"{rid} is told {counted(told, 'time')} to wait for a fetch, and may be told {counted(patience, 'time')}"


@law(CONTRACT, needs=("tiers",), answers=("LMCache#5151",))
def promise_kept(rid: str, ready: int, promised: int, failed: bool) -> str | None:
    """A request is ready with at least what its admission has promised, or with less if a transfer has failed since."""
    if ready >= promised or failed:
        return None
    return f"{rid} was promised {counted(promised, 'token')} and is ready with {ready}, though nothing has failed"
