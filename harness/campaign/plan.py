"""Plan of a campaign. Two runs with equal plans have equal shards, wherever they run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import Profile
from kvlockstep.core.target_names import one_name
from kvlockstep.targets import Target

SHARD_EPISODES = 64


@dataclass(frozen=True)
class Plan:
    """Shard i is the episodes i * shard_episodes and following of `seed`, played by `driver`.

    `step_seconds` is how long a call may take; shrinking one failure may play `shrink_steps` operations.
    """

    contract: str
    target: str
    driver: str
    seed: int
    shard_episodes: int
    step_seconds: float
    shrink_steps: int
    kvlockstep: str

    def episodes(self, shard: int) -> range:
        """The episodes of a shard."""
        return range(shard * self.shard_episodes, (shard + 1) * self.shard_episodes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(target: Target, profile: Profile, seed: int, driver: str, shard_episodes: int = SHARD_EPISODES) -> Plan:
    """The plan of a campaign with the limits of a profile."""
    return Plan(
        target.contract,
        target.name,
        driver,
        seed,
        shard_episodes,
        profile.step_seconds,
        profile.shrink_steps,
        version("kvlockstep"),
    )


def require_same(plan: Plan, stored: dict[str, Any], where: str, way_out: str) -> None:
    """Raises UsageError if the campaign in a store was made with another plan."""
    wanted = plan.to_json()
    names = [name for name in wanted if stored.get(name) != wanted[name]]
    if "target" in names and one_name(str(stored.get("target"))) == one_name(plan.target):
        names.remove("target")
    if not names:
        return
    differences = ", ".join(f"{name} {stored.get(name)!r}, not {wanted[name]!r}" for name in names)
    raise UsageError(f"the campaign in {where} has {differences}; give the options of its start, or {way_out}")
