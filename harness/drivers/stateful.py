"""The driver of Hypothesis's stateful testing, which imports Hypothesis only when it runs: that takes long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvlockstep.core.profiles import Profile
from kvlockstep.drivers.episode import Outcome
from kvlockstep.drivers.run import Run, Shard

# Steps of an example in a campaign, where the number of its examples is that of the shard's episodes.
SHARD_STEPS = 50


@dataclass(frozen=True)
class HypothesisMachines:
    """The driver of Hypothesis's stateful testing.

    Failing examples are saved to the example `database`; with `reuse` those of earlier runs are played, and no others.
    Shrinking is left to drivers.shrink.
    """

    name = "hypothesis"
    about = "a rule-based state machine, one rule for each operation"
    alone = False
    each = False

    database: Any = None
    reuse: bool = False

    def run(self, run: Run) -> Outcome:
        """Runs the machine of the model for `examples` episodes of up to `steps_per_example` steps."""
        from kvlockstep.drivers.hypothesis_machine import run_machine  # noqa: PLC0415

        return run_machine(run, self.database, self.reuse)

    def play(self, shard: Shard) -> Iterator[Outcome]:
        """One run with as many examples as there are episodes; it ends at the first failure."""
        budget = Profile("shard", examples=len(shard.episodes), steps_per_example=SHARD_STEPS)
        # Far enough apart that the seeds of one campaign are in no shard of the next.
        seed = shard.seed * 1_000_003 + shard.episodes.start
        driver = replace(self, database=shard.database)
        outcome = driver.run(Run(shard.model_type, shard.factory, budget, shard.watchdog, seed))
        outcome.failure = outcome.failure and outcome.failure.but(seed=shard.seed)
        yield outcome
