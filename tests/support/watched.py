"""Drivers under a watchdog that watches, so that a target that never returns fails its test instead of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kvlockstep.core.watchdog import Watchdog

R = TypeVar("R")


def watched(drive: Callable[..., R], *arguments: Any, limit: float = 30.0, **options: Any) -> R:
    """Calls a driver with a `watchdog` that cuts off a step of more than `limit` seconds."""
    with Watchdog(limit).watching() as watchdog:
        return drive(*arguments, watchdog=watchdog, **options)
