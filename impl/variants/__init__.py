"""Known-good variants: targets that keep a contract in a way of their own. No law may blame them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def variants_of(contract: str) -> dict[str, Callable[..., Any]]:
    """The variants of a contract by name; each is a target, `variant:NAME`."""
    from kvlockstep.impl.variants import kv_manager, kv_scheduler  # noqa: PLC0415

    known: dict[str, dict[str, Callable[..., Any]]] = {
        "kv_manager": {**kv_manager.VARIANTS},
        "kv_scheduler": {**kv_scheduler.VARIANTS},
    }
    return known.get(contract, {})
