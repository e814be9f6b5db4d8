"""`score`: the suite on its own faults and on known-good targets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kvlockstep.commands.options import example, jobs_option_for, json_option, options, print_json, profile_option_for
from kvlockstep.core.errors import UsageError, did_you_mean
from kvlockstep.core.files import require_writable
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import save_trace
from kvlockstep.models.registry import MODELS
from kvlockstep.runs.results import EXIT_CODES
from kvlockstep.show.console import progress_bar, stdout
from kvlockstep.targets.registry import check_contract, known_faults


@click.command("score", epilog=example("kvlockstep score --contract kv_manager"))
@options(profile_option_for("Budget of the run", "ci"), json_option)
@click.option(
    "--contract", "contracts", multiple=True, metavar="CONTRACT", help="Score only this contract. Repeatable."
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="ID",
    help="Score only this fault, and no known-good targets. Repeatable.",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=int,
    metavar="N",
    help="Seed that must catch every fault. Repeatable (default 0, 1 and 2).",
)
@click.option(
    "--clean-times",
    type=click.FloatRange(min=0),
    default=0.25,
    show_default=True,
    metavar="X",
    help="Steps for each known-good target, as a multiple of the profile's random steps. "
    "If a target misses goals, it plays all of them.",
)
@click.option(
    "--thorough",
    is_flag=True,
    help="Explore also the faults that random episodes caught, run Hypothesis on them, and shrink each trace as far as "
    "`check` does.",
)
@options(jobs_option_for("Worker processes", 2))
@click.option("--traces", metavar="DIR", help="Write the shortest trace of each fault to DIR; implies --thorough.")
def score_command(
    profile: str | None,
    as_json: bool,
    contracts: Sequence[str],
    faults: Sequence[str],
    seeds: Sequence[int],
    clean_times: float,
    thorough: bool,
    jobs: int,
    traces: str | None,
) -> None:
    """Run the drivers on every fault in impl/faulty and on the known-good targets. The default profile is ci.

    The score fails if a seed misses a fault, or if a known-good target does not hold; a thorough one also if a shortest
    trace has more than 12 operations, or if their median is above 6. Random episodes come first. Exploration, with a
    small share of the profile's steps, and Hypothesis run on what they miss.
    """
    from kvlockstep.runs.score import score as run_score  # noqa: PLC0415
    from kvlockstep.show.score_text import print_score  # noqa: PLC0415

    names = [check_contract(name) for name in contracts] or list(MODELS)
    known = {id_ for name in names for id_ in known_faults(name)}
    if unknown := [id_ for id_ in faults if id_ not in known]:
        hint = did_you_mean(unknown[0], known) or "; `kvlockstep list` shows them"
        raise UsageError(f"--fault {unknown[0]!r} is no fault of {', '.join(names)}{hint}")
    if traces:
        require_writable(Path(traces))
    with progress_bar(total=True) as progress:
        task = progress.add_task("scoring")
        result = run_score(
            profile_of(profile or "ci"),
            contracts=names,
            faults=faults,
            seeds=tuple(dict.fromkeys(seeds)) or (0, 1, 2),
            clean_times=clean_times,
            thorough=thorough or traces is not None,
            jobs=jobs,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for fault in result.faults if traces else ():
        if fault.trace is not None:
            # An error's details are a traceback with paths of this machine; a replay makes them again.
            save_trace(fault.trace.but(details=()), Path(str(traces), fault.contract), f"{fault.id}.jsonl")
    if as_json:
        print_json(result.to_json())
    else:
        print_score(stdout(), result)
    sys.exit(EXIT_CODES[result.verdict])
