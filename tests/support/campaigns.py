"""What the tests of campaigns compare."""

from __future__ import annotations

import json

from kvlockstep.campaign import fuzz
from kvlockstep.campaign.store import DirectoryStore
from kvlockstep.core.profiles import Profile

FAST = Profile("test", step_seconds=0.5, shrink_steps=9_000)


def campaign(target, directory, **changes):
    """A short campaign of two workers, which ends with its shards and not with its time."""
    return fuzz(target, FAST, **{"seconds": 600.0, "jobs": 2, "seed": 0, "directory": directory, **changes})


def traces(directory):
    """Every trace in a campaign directory by its file, byte for byte."""
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.glob("*/*.jsonl"))}


def sums(store):
    """Everything that the ledger of a campaign counts, but for the clock."""
    ledger = (store if hasattr(store, "load") else DirectoryStore(store)).load().ledger.to_json()
    clock = ("seconds", "history", "lost", "lost_texts")
    return json.loads(json.dumps({name: value for name, value in ledger.items() if name not in clock}))


def is_fork_of_us(pid):
    """Whether a process is a copy of this one, as workers are."""
    with open(f"/proc/{pid}/cmdline", "rb") as theirs, open("/proc/self/cmdline", "rb") as ours:
        return theirs.read() == ours.read()
