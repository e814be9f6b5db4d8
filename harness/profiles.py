"""How much a check runs."""

from __future__ import annotations

from dataclasses import dataclass

from kvlockstep.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """Budgets of one check of one target. `explore_seconds` is for all small scopes together.

    A call that takes `step_seconds` is cut off.
    """

    name: str
    explore_seconds: float
    examples: int
    steps_per_example: int
    random_steps: int
    step_seconds: float = 5.0
    shrink_seconds: float = 20.0


PROFILES = {
    p.name: p
    for p in (
        Profile("quick", 3.0, 30, 30, 30_000),
        Profile("ci", 15.0, 100, 50, 200_000),
        Profile("deep", 300.0, 1_000, 100, 5_000_000, step_seconds=20.0, shrink_seconds=120.0),
    )
}


def profile_of(name: str) -> Profile:
    """The profile of this name. Raises UsageError."""
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}; known: {', '.join(PROFILES)}")
    return PROFILES[name]
