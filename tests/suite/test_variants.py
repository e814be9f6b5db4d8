"""Variants by name. `kvlockstep score` shows that no law blames one."""

from __future__ import annotations

import pytest

from kvlockstep.core.errors import UsageError
from kvlockstep.targets import resolve


def test_both_prefixes_name_the_same_variant():
    assert resolve("kv_manager", "harmless:by-token").factory is resolve("kv_manager", "variant:by-token").factory
    with pytest.raises(UsageError, match=r"unknown target 'variant:none'.*known for kv_manager: .*by-token"):
        resolve("kv_manager", "variant:none")
