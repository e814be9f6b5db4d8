"""The suite lets managers pass that keep the contract in their own way."""

from __future__ import annotations

import pytest

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.impl.variants.kv_manager import HARMLESS
from kvlockstep.models.kv_manager import KVManagerModel


@pytest.mark.parametrize("manager", HARMLESS.values(), ids=HARMLESS)
def test_no_false_alarm(manager):
    with Watchdog(5.0).watching() as watchdog:
        outcome = random_walk(KVManagerModel, manager, seed=11, watchdog=watchdog, steps=40_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    missed = {goal.id for goal in KVManagerModel.goals if not outcome.reach[goal.id]}
    assert missed <= (outcome.unreachable or set())
