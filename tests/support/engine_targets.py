"""Targets of engines, for tests that are skipped where the engine is not on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driving import walk

from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import load_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, Replayed, play_ops
from kvlockstep.models.core.model import Model
from kvlockstep.models.registry import model_of
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


def replayed_or_skip(name: str) -> Replayed:
    """A trace of tests/data/engines, played again on its target. Skips the test if the engine is not here."""
    trace = load_trace(Path(__file__).parents[1] / "data" / "engines" / f"{name}.jsonl")
    factory = target_or_skip(trace.contract, trace.target).factory
    return play_ops(model_of(trace.contract), factory, trace.scope, trace.ops, Watchdog(20.0))


def walk_or_skip(model_type: type[Model[Any]], name: str, steps: int, seed: int = 1) -> Outcome:
    """Random episodes of the target of this name. Skips the test if the engine is not here."""
    return walk(model_type, target_or_skip(model_type.contract, name).factory, steps, seed)
