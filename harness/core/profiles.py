"""Profiles: the budgets of a check."""

from __future__ import annotations

from dataclasses import dataclass

from kvlockstep.core.errors import UsageError, known_names

# Steps per second of the slowest target and machine that are waited for, and how long is always waited. The references
# play 5,000 to 20,000 on an idle machine.
SLOWEST, SHORTEST_LIMIT = 100, 300.0


@dataclass(frozen=True)
class Profile:
    """Budgets of one check of one target, in work and not in time, so that every machine finds the same.

    A driver reads what it uses; the rest may be left out. `explore_steps` is for all small scopes together; see
    drivers.explore for which steps count. Shrinking one failure plays up to `shrink_steps`, and looks for nothing
    shorter than `short_enough` operations; without `simplify` it ends there, and leaves arguments and scope as they
    are. The limits in seconds are there for targets that are slow beyond all reason. A call that takes `step_seconds`
    is cut off.
    """

    name: str
    explore_steps: int = 0
    examples: int = 0
    steps_per_example: int = 0
    random_steps: int = 0
    step_seconds: float = 5.0
    shrink_steps: int = 120_000
    short_enough: int = 4
    simplify: bool = True

    @property
    def explore_limit(self) -> float:
        """The seconds after which an exploration is cut off, which makes a check inconclusive."""
        return max(SHORTEST_LIMIT, self.explore_steps / SLOWEST)

    @property
    def shrink_limit(self) -> float:
        """The seconds after which shrinking is cut off; the trace says that it was not shrunk to the end."""
        return max(SHORTEST_LIMIT, self.shrink_steps / SLOWEST)


PROFILES = {
    p.name: p
    for p in (
        Profile("quick", 30_000, 30, 30, 30_000),
        Profile("ci", 140_000, 100, 50, 200_000),
        Profile("deep", 2_800_000, 1_000, 100, 5_000_000, step_seconds=20.0, shrink_steps=600_000),
    )
}


def profile_of(name: str) -> Profile:
    """The profile of this name. Raises UsageError."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}{known_names(name, PROFILES)}")
    return PROFILES[name]
