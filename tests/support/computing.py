"""Prompts that are computed on a manager without a judge."""

from __future__ import annotations

from typing import Any


def compute(manager: Any, rid: str, tokens: list[int], key: int | None = None, n: int | None = None) -> int | None:
    """Admits a prompt, or `n` tokens of it, and computes it. Returns the cached tokens, or None for a refusal."""
    cached: int | None = manager.admit(rid, tokens, key, n or len(tokens))
    if cached is not None:
        manager.launch()
        manager.commit(rid, n or len(tokens) - cached)
    return cached
