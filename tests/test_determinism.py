"""The same seed gives the same steps, in another process and under another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib, sys
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.explore import explore
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.drivers.stateful import hypothesis_run
from kvlockstep.models.registry import MODELS
from kvlockstep.targets import resolve
from kvlockstep.watchdog import Watchdog

seen = hashlib.sha256()
contract, driver = sys.argv[1:]
base = MODELS[contract]

class Noted(base):
    def step(self, op):
        seen.update(repr(op).encode())
        answer = super().step(op)
        seen.update(repr(answer).encode())
        return answer

factory = resolve(contract, "reference").factory
watchdog = Watchdog(30)
if driver == "random":
    for episode in range(8):
        run_episode(Noted, factory, 5, episode, watchdog, Outcome("random"))
elif driver == "hypothesis":
    hypothesis_run(Noted, factory, seed=5, watchdog=watchdog, examples=8, steps=20)
else:
    explore(Noted, factory, base.small_scopes[-1], watchdog=watchdog, max_depth=2)
print(seen.hexdigest())
"""


def steps(contract, driver, hash_seed):
    command = [sys.executable, "-c", PROGRAM, contract, driver]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.mark.parametrize("driver", ["random", "hypothesis", "explore"])
@pytest.mark.parametrize("contract", ["slot_pool", "slot_prefix_cache", "block_stack", "kv_manager"])
def test_same_seed_same_steps(contract, driver):
    first, second = steps(contract, driver, "0"), steps(contract, driver, "12345")
    assert first == second
    assert len(first) == 64
