"""The same seed gives the same steps, in another process and under another hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from kvlockstep.models.registry import MODELS

PROGRAM = """
import hashlib
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import Run
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.explore import Explore
from kvlockstep.drivers.guided import Guide
from kvlockstep.drivers.stateful import HypothesisMachines
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.models.registry import MODELS
from kvlockstep.targets import resolve

watchdog = Watchdog(30)
BUDGET = Profile("test", explore_steps=200, examples=3, steps_per_example=20)

def noted(base):
    class Noted(base):
        def step(self, op):
            seen.update(repr(op).encode())
            answer = super().step(op)
            seen.update(repr(answer).encode())
            return answer

    return Noted

def by_random(model_type, factory):
    for episode in range(2):
        run_episode(model_type, factory, 5, episode, watchdog, Outcome("random"))

def by_guided(model_type, factory):
    guide = Guide(model_type, seed=5)
    for episode in range(2):
        guide.run_episode(factory, episode, watchdog, Outcome("guided"))

def by_hypothesis(model_type, factory):
    HypothesisMachines().run(Run(model_type, factory, BUDGET, watchdog, seed=5))

def by_explore(model_type, factory):
    Explore().run(Run(model_type, factory, BUDGET, watchdog))

for contract, base in MODELS.items():
    factory = resolve(contract, "reference").factory
    for drive in (by_random, by_guided, by_hypothesis, by_explore):
        seen = hashlib.sha256()
        with watchdog.watching():
            drive(noted(base), factory)
        print(contract, drive.__name__, seen.hexdigest())
"""
DRIVERS = ("by_random", "by_guided", "by_hypothesis", "by_explore")
NOTHING = hashlib.sha256().hexdigest()


def steps(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()


def test_same_seed_same_steps_in_every_driver():
    first, second = steps("0"), steps("12345")
    assert first == second
    assert [tuple(line.split()[:2]) for line in first] == [(name, drive) for name in MODELS for drive in DRIVERS]
    assert not [line for line in first if NOTHING in line]
