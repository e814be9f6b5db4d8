"""The same seed gives the same steps, in another process and under another hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from kvlockstep.models.registry import MODELS

PROGRAM = """
import hashlib, math, sys
from kvlockstep.core.profiles import Profile
from kvlockstep.drivers import Run
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.explore import Explore
from kvlockstep.drivers.guided import Guide
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.drivers.hypothesis_machine import HypothesisMachines
from kvlockstep.models.registry import MODELS
from kvlockstep.targets import resolve
from kvlockstep.core.watchdog import Watchdog

contract = sys.argv[1]
base = MODELS[contract]
factory = resolve(contract, "reference").factory
watchdog = Watchdog(30)
BUDGET = Profile("test", examples=8, steps_per_example=20)

class Noted(base):
    def step(self, op):
        seen.update(repr(op).encode())
        answer = super().step(op)
        seen.update(repr(answer).encode())
        return answer

def by_random():
    for episode in range(8):
        run_episode(Noted, factory, 5, episode, watchdog, Outcome("random"))

def by_guided():
    guide = Guide(Noted, seed=5)
    for episode in range(8):
        guide.run_episode(factory, episode, watchdog, Outcome("guided"))

def by_hypothesis():
    HypothesisMachines().run(Run(Noted, factory, BUDGET, watchdog, seed=5))

def by_explore():
    scopes = base.small_scopes[-1:]
    Explore(scopes, steps=math.inf, max_depth=2).run(Run(Noted, factory, BUDGET, watchdog))

for drive in (by_random, by_guided, by_hypothesis, by_explore):
    seen = hashlib.sha256()
    with watchdog.watching():
        drive()
    print(drive.__name__, seen.hexdigest())
"""
NOTHING = hashlib.sha256().hexdigest()


def steps(contract, hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM, contract]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


@pytest.mark.parametrize("contract", MODELS)
def test_same_seed_same_steps_in_every_driver(contract):
    first, second = steps(contract, "0"), steps(contract, "12345")
    assert first == second
    assert [line.split()[0] for line in first] == ["by_random", "by_guided", "by_hypothesis", "by_explore"]
    assert not [line for line in first if NOTHING in line]
