"""`replay`: a saved trace again, twice; or a request trace under the KV oracle."""

from __future__ import annotations

from pathlib import Path

from kvlockstep.checking import replay_trace
from kvlockstep.drivers.episode import Outcome
from kvlockstep.page import failure_page
from kvlockstep.profiles import profile_of
from kvlockstep.report import HOLDS, VIOLATED, Run, run_of
from kvlockstep.targets import Target
from kvlockstep.trace import Trace


def replay_twice(target: Target, trace: Trace, path: Path) -> tuple[str, str, str, Run]:
    """Plays a trace two times: verdict, the word for it (FIXED, VIOLATED, FLAKY), the page to show, the run."""
    profile = profile_of("quick")
    first, second = (replay_trace(target, trace, profile) for _ in range(2))
    failure = first or second
    outcome = Outcome("replay", steps=2 * len(trace.ops))
    if failure is None:
        word = "FIXED" if trace.law else "HOLDS"
        page = f"{trace.contract} on {target.name}: {len(trace.ops)} operations, every law held"
        return HOLDS, word, page, run_of(trace.contract, target.name, outcome)
    flaky = first is None or second is None or first.law != second.law
    outcome.failure = failure.but(target=target.name, original=trace.original, flaky=flaky)
    word = "FLAKY" if flaky else "VIOLATED"
    return VIOLATED, word, failure_page(outcome.failure, path), run_of(trace.contract, target.name, outcome, path)
