"""`explore`: every state of a contract's small scopes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.progress import Progress

from kvlockstep.commands.options import (
    complete_contract,
    dir_option,
    example,
    json_option,
    one_target,
    options,
    parse_time,
    print_json,
    show_output_option,
    target_option,
)
from kvlockstep.core.failure_page import failure_page, save_found
from kvlockstep.core.profiles import profile_of
from kvlockstep.models.registry import model_of
from kvlockstep.runs.config import Config
from kvlockstep.runs.drive import explore_scope
from kvlockstep.runs.results import EXIT_CODES, HOLDS, VIOLATED, DriverResult, result_of
from kvlockstep.runs.shrinking import shrink_failure
from kvlockstep.show.console import progress_bar, stdout
from kvlockstep.show.findings import results_of_runs
from kvlockstep.show.machine_formats import machine_formats, publish


@click.command(
    "explore",
    epilog=example("kvlockstep explore kv_manager --target my_manager.py:MyManager --time 60s"),
)
@click.argument("contract", shell_complete=complete_contract)
@options(target_option, dir_option, json_option, machine_formats, show_output_option)
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="Stop each scope after N steps, repeated ones included."
)
@click.option(
    "--time",
    "time_text",
    metavar="DURATION",
    help="Stop each scope after this time, such as 60s. With --steps every machine stops at the same place.",
)
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Stop at sequences of N operations.")
def explore_command(
    contract: str,
    targets: Sequence[str],
    directory: str | None,
    as_json: bool,
    steps: int | None,
    time_text: str | None,
    depth: int | None,
) -> None:
    """Visit every state of the contract's small scopes, breadth first, with every operation.

    Without --steps and --time a scope may take many minutes. The line of a scope says to which depth it went, and "not
    exhausted" if states were left.
    """
    target = one_target(contract, targets)
    model_type = model_of(contract)
    seconds = parse_time(time_text) if time_text else None
    where = Path(directory or Config.dir)
    budget = profile_of("quick")
    report: list[DriverResult] = []
    console = stdout()
    for scope in model_type.small_scopes_of(target.factory):
        with progress_bar() as progress:
            outcome = explore_scope(
                target, scope, budget, steps=steps, seconds=seconds, max_depth=depth, progress=_step_counter(progress)
            )
        # The time is the user's wish, so that its end says nothing against the run.
        end, outcome.cut = outcome.cut or ("exhausted" if outcome.exhausted else "not exhausted"), ""
        path = None
        if outcome.failure is not None:
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), budget)
            path = save_found(outcome.failure, where)
        report.append(result_of(contract, target.name, outcome, path))
        if not as_json:
            sizes = ", ".join(f"{k}={v}" for k, v in scope.shown().items())
            console.print(
                f"{contract} on {target.name} with {sizes}: {outcome.steps:,} states, {outcome.states:,} unique, depth "
                f"{outcome.depth}, {outcome.seconds:.1f} seconds, {end}",
                markup=False,
            )
        if outcome.failure is not None:
            break
    _end_runs(report, as_json)


def _step_counter(progress: Progress) -> Callable[[int], None]:
    task = progress.add_task("exploring")
    return lambda steps: progress.update(task, description=f"{steps:,} steps")


def _end_runs(runs: list[DriverResult], as_json: bool) -> None:
    verdict = VIOLATED if any(run.failure for run in runs) else HOLDS
    if as_json:
        print_json({"verdict": verdict, "runs": [run.to_json() for run in runs]})
    else:
        console = stdout()
        for run in runs:
            if run.failure is not None:
                console.print(failure_page(run.failure, run.trace), markup=False)
        console.print(verdict.upper())
    publish(results_of_runs(runs))
    sys.exit(EXIT_CODES[verdict])
