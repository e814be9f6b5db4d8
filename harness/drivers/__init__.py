"""The drivers: each chooses the operations of a model in its own way, one file for each.

`check` runs those of CHECK_DRIVERS in this order, cheapest to read first: what exploration finds is shortest. `fuzz`
runs one of SHARD_DRIVERS.
"""

from __future__ import annotations

from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.drivers.explore import Explore
from kvlockstep.drivers.guided import Guided
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.run import Driver, Run, Shard, ShardDriver
from kvlockstep.drivers.stateful import HypothesisMachines

_SHARD_DRIVERS: tuple[ShardDriver, ...] = (RandomWalk(), Guided(), HypothesisMachines())
SHARD_DRIVERS = {driver.name: driver for driver in _SHARD_DRIVERS}
DRIVERS: dict[str, Driver] = {driver.name: driver for driver in (Explore(), *_SHARD_DRIVERS)}
CHECK_DRIVERS = ("explore", "hypothesis", "random")

__all__ = ["CHECK_DRIVERS", "DRIVERS", "SHARD_DRIVERS", "Driver", "Run", "Shard", "ShardDriver", "driver_named"]


def driver_named(name: str) -> Driver:
    """The driver of this name. Raises UsageError."""
    if name not in DRIVERS:
        raise UsageError(f"unknown driver {name!r}{known_names(name, DRIVERS)}")
    return DRIVERS[name]
