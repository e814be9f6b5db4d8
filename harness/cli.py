"""The command line."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from kvlockstep.checking import DRIVERS, check_target, explore_scope, shrink_failure
from kvlockstep.config import Config, load_config
from kvlockstep.console import (
    CheckProgress,
    announce_timing,
    complete_contract,
    print_summary,
    print_target,
    progress_bar,
    stderr,
    stdout,
)
from kvlockstep.differing import diff_command
from kvlockstep.engines import engines_command
from kvlockstep.errors import UsageError
from kvlockstep.explaining import explain_command, list_command
from kvlockstep.files import require_writable
from kvlockstep.formats import (
    machine_formats,
    publish,
    results_of,
    results_of_runs,
)
from kvlockstep.fuzzing import fuzz_command, status_command
from kvlockstep.isolation import ChildLost
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.options import (
    config_option,
    dir_option,
    in_process_option,
    json_option,
    one_target,
    options,
    parse_time,
    print_json,
    profile_option,
    seed_option,
    target_option,
)
from kvlockstep.page import failure_page
from kvlockstep.profiles import profile_of
from kvlockstep.proving import prove_command
from kvlockstep.quality import quality_command
from kvlockstep.replaying import replay_command
from kvlockstep.report import ERROR, EXIT_CODES, HOLDS, VIOLATED, Report, Run, run_of
from kvlockstep.report_page import report_command
from kvlockstep.scaffolding import new_target_command
from kvlockstep.targets import CPU, ENGINES, Target, check_contract, known_faults, known_targets, on_device, resolve
from kvlockstep.trace import save_trace

# The errors of a full disk, of a pipe that nobody reads, and of a closed file.
UNWRITABLE = (errno.ENOSPC, errno.EPIPE, errno.EBADF, errno.EIO)


class _Verbs(click.Group):
    """Verbs whose results could not be written end with a usage error, whatever their verdict."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            # What is still buffered would fail again when Python ends.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise UsageError(f"cannot write the results: {error.strerror}") from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvlockstep")
def cli() -> None:
    """Executable specifications of KV-cache managers, run in lockstep against yours until they diverge.

    Exit codes: 0 holds, 1 violated, 2 usage or configuration, 3 inconclusive, 4 internal error, 130 interrupted (after
    another signal: 128 plus its number).
    """


@cli.command()
@click.argument("contracts", nargs=-1, shell_complete=complete_contract)
@options(target_option, profile_option, seed_option, dir_option, json_option, config_option, machine_formats)
@click.option(
    "--driver", "drivers", multiple=True, metavar="|".join(DRIVERS), help="Only these drivers; may be repeated."
)
@in_process_option
@click.option("--device", default=CPU, show_default=True, metavar="cpu|cuda", help="Where targets keep tensors.")
def check(
    contracts: Sequence[str],
    targets: Sequence[str],
    profile: str | None,
    seed: int | None,
    directory: str | None,
    as_json: bool,
    config: Path | None,
    drivers: Sequence[str],
    in_process: bool,
    device: str,
) -> None:
    """Saved failures, exhaustive exploration, Hypothesis, then random episodes.

    Without CONTRACTS, every contract; without --target, every target that comes with the package or is configured.
    """
    settings = load_config(config)
    budget = profile_of(profile or settings.profile)
    where = Path(directory or settings.dir)
    if unknown := [driver for driver in drivers if driver not in DRIVERS]:
        raise UsageError(f"unknown driver {unknown[0]!r}; known: {', '.join(DRIVERS)}")
    report = Report()
    chosen = _chosen_targets(contracts, targets, settings, report, device)
    require_writable(where)
    console = stderr() if as_json else stdout()
    for target in chosen:
        with progress_bar() as progress:
            done = check_target(
                target,
                budget,
                seed=settings.seed if seed is None else seed,
                directory=where,
                emit=CheckProgress(progress),
                drivers=tuple(drivers) or DRIVERS,
                in_process=in_process,
            )
        report.targets.append(done)
        if not as_json:
            print_target(console, done)
    if as_json:
        print_json(report.to_json())
    else:
        print_summary(console, report)
    publish(results_of(report))
    sys.exit(EXIT_CODES[report.verdict])


def _chosen_targets(
    contracts: Sequence[str], specs: Sequence[str], settings: Config, report: Report, device: str = CPU
) -> list[Target]:
    names = [check_contract(name) for name in contracts] or list(settings.contracts) or list(MODELS)
    if specs and len(names) != 1:
        raise UsageError("--target needs one CONTRACT, so that it is clear what the target implements")
    chosen = []
    for contract in names:
        wanted = specs or settings.targets.get(contract, ())
        for spec in wanted or [name for name in known_targets(contract) if name != "reference"]:
            try:
                target = resolve(contract, spec)
                chosen.append(target if device in (CPU, target.device) else on_device(target, device))
            except UsageError as error:
                if wanted or (spec not in ENGINES and device == CPU):
                    raise
                report.skipped[f"{contract} on {spec}"] = str(error)
    if device != CPU and not chosen:
        raise UsageError(f"nothing to check on {device}: {'; '.join(report.skipped.values())}")
    return chosen


@cli.command()
@click.argument("contract", shell_complete=complete_contract)
@options(target_option, dir_option, json_option, machine_formats)
@click.option("--steps", type=click.IntRange(min=1), help="Stop each scope after these steps, repeated ones included.")
@click.option("--time", "time_text", help="Stop each scope after this time, like 60s; --steps stops alike everywhere.")
@click.option("--depth", type=click.IntRange(min=1), help="Stop at this depth.")
def explore(
    contract: str,
    targets: Sequence[str],
    directory: str | None,
    as_json: bool,
    steps: int | None,
    time_text: str | None,
    depth: int | None,
) -> None:
    """Every operation in every state of the contract's small scopes, breadth first."""
    target = one_target(contract, targets)
    model_type = model_of(contract)
    seconds = parse_time(time_text) if time_text else None
    where = Path(directory or Config.dir)
    report: list[Run] = []
    console = stdout()
    for scope in model_type.small_scopes:
        with progress_bar() as progress:
            outcome = explore_scope(
                target, scope, steps=steps, seconds=seconds, max_depth=depth, progress=_step_counter(progress)
            )
        # The time is the user's wish, so that its end says nothing against the run.
        end, outcome.cut = outcome.cut or ("exhausted" if outcome.exhausted else "not exhausted"), ""
        path = None
        if outcome.failure is not None:
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), profile_of("quick"))
            path = save_trace(outcome.failure, where)
        report.append(run_of(contract, target.name, outcome, path))
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


@cli.command()
@options(profile_option, json_option)
@click.option("--contract", "contracts", multiple=True, help="Only the faults and twins of this contract.")
@click.option("--fault", "faults", multiple=True, metavar="ID", help="Only this fault, and no clean twins.")
@click.option("--seed", "seeds", multiple=True, type=int, help="Every seed must catch a fault (default 0, 1 and 2).")
@click.option(
    "--clean-times",
    type=click.FloatRange(min=0),
    default=0.25,
    show_default=True,
    help="Clean twins' steps, in budgets of the profile.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Worker processes.")
@click.option("--traces", help="Directory for the shortest trace of each fault.")
def score(
    profile: str | None,
    as_json: bool,
    contracts: Sequence[str],
    faults: Sequence[str],
    seeds: Sequence[int],
    clean_times: float,
    jobs: int,
    traces: str | None,
) -> None:
    """Every fault in impl/faulty under every driver, and the clean twins; default profile ci.

    A fault that a seed misses, a shortest trace of more than 12 operations, a median above 6, and a clean twin that
    does not hold fail the score. Exploration gets a small share of the profile's time on each fault.
    """
    from kvlockstep.score_text import print_score  # noqa: PLC0415
    from kvlockstep.scoring import score as run_score  # noqa: PLC0415

    names = [check_contract(name) for name in contracts] or list(MODELS)
    known = {id_ for name in names for id_ in known_faults(name)}
    if unknown := [id_ for id_ in faults if id_ not in known]:
        raise UsageError(f"--fault {unknown[0]!r} is no fault of {', '.join(names)}; `kvlockstep list` shows them")
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
            jobs=jobs,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for fault in result.faults if traces else ():
        if fault.trace is not None:
            # An error's details are a traceback with paths of this machine; a replay makes them anew.
            save_trace(fault.trace.but(details=()), Path(str(traces)), f"{fault.id}.jsonl")
    if as_json:
        print_json(result.to_json())
    else:
        print_score(stdout(), result)
    sys.exit(EXIT_CODES[result.verdict])


@cli.command()
@click.argument("what", nargs=-1, metavar="[drivers|block_pool|radix_cache|kv_store|record]...")
@click.option("--contract", "contracts", multiple=True, help="For guided episodes against uniform ones (repeatable).")
@click.option("--steps", type=click.IntRange(min=1), help="For these: steps of a run at most (default 10,000).")
@click.option("--seeds", type=click.IntRange(min=1), help="For these: runs for each fault (default 3).")
@json_option
def bench(what: Sequence[str], contracts: Sequence[str], steps: int | None, seeds: int | None, as_json: bool) -> None:
    """Speed as ratios inside one run: drivers against each other, implementations against their floors."""
    from kvlockstep.bench_guided import CONTRACTS, SEEDS, STEPS, bench_guided, print_guided  # noqa: PLC0415
    from kvlockstep.benching import BENCHES, bench_drivers, print_drivers, print_speeds  # noqa: PLC0415

    if unknown := [name for name in what if name not in ("drivers", *BENCHES)]:
        raise UsageError(f"unknown bench {unknown[0]!r}; known: drivers, {', '.join(BENCHES)}")
    for contract in contracts:
        check_contract(contract)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in what or ("drivers", *BENCHES):
        if name == "drivers":
            announce_timing("drivers")
            drivers = bench_drivers()
            results[name] = [vars(row) for row in drivers]
            if not as_json:
                print_drivers(stdout(), drivers)
            announce_timing("guided episodes")
            guided = list(bench_guided(contracts or CONTRACTS, steps or STEPS, seeds or SEEDS))
            results["guided"] = [row.to_json() for row in guided]
            if not as_json:
                print_guided(stdout(), guided)
        else:
            announce_timing(name)
            speeds = BENCHES[name]()
            results[name] = [{**vars(row), "ratio": row.ratio} for row in speeds]
            if not as_json:
                print_speeds(stdout(), name, speeds)
    if as_json:
        print_json(results)


for extra in (
    report_command,
    list_command,
    explain_command,
    new_target_command,
    engines_command,
    diff_command,
    replay_command,
    prove_command,
    quality_command,
    fuzz_command,
    status_command,
):
    cli.add_command(extra)


def _step_counter(progress: Progress) -> Callable[[int], None]:
    task = progress.add_task("exploring")
    return lambda steps: progress.update(task, description=f"{steps:,} steps")


def _end_runs(runs: list[Run], as_json: bool) -> None:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Turns what can go wrong into one message and an exit code."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a target's words may be in no alphabet of the terminal
    try:
        if sys.stdout is None:
            raise UsageError("standard output is closed; the results need a place, if only /dev/null")
        cli.main(args=None if arguments is None else list(arguments), prog_name="kvlockstep", standalone_mode=False)
    except UsageError as error:
        stderr().print(f"kvlockstep: {error}", markup=False)
        sys.exit(2)
    except ChildLost as lost:
        # Verbs that make traces of it do so; for the others it is a call that raised what no contract names.
        stderr().print("\n".join([f"kvlockstep: VIOLATED error_contract: {lost}", *lost.details]), markup=False)
        sys.exit(EXIT_CODES[VIOLATED])
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        stderr().print("kvlockstep: interrupted")
        sys.exit(130)
    except SystemExit:
        raise
    except BaseException:
        stderr().print(f"kvlockstep: internal error\n{traceback.format_exc()}", markup=False)
        sys.exit(EXIT_CODES[ERROR])
