"""Targets of engines, for tests that are skipped where the engine is not on this machine."""

from __future__ import annotations

import pytest

from kvlockstep.core.errors import UsageError
from kvlockstep.targets import Target
from kvlockstep.targets.registry import EngineMissing, resolve


def target_or_skip(contract: str, name: str) -> Target:
    """The target. Skips the test, with the reason, if its engine is not here; any other error is raised."""
    try:
        return resolve(contract, name)
    except UsageError as error:
        if not isinstance(error.__cause__, EngineMissing):
            raise
        pytest.skip(str(error))
