"""The command line."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.progress import Progress

from kvlockstep.campaign import fuzz as run_campaign
from kvlockstep.campaign import require_writable
from kvlockstep.checking import DRIVERS, check_target, shrink_failure
from kvlockstep.config import Config, load_config
from kvlockstep.console import (
    CheckProgress,
    print_campaign,
    print_summary,
    print_target,
    progress_bar,
    stderr,
    stdout,
)
from kvlockstep.drivers.explore import explore as run_explore
from kvlockstep.errors import UsageError
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.page import failure_page
from kvlockstep.profiles import PROFILES, profile_of
from kvlockstep.replaying import replay_mooncake, replay_twice
from kvlockstep.report import ERROR, EXIT_CODES, HOLDS, INCONCLUSIVE, VIOLATED, Report, Run, run_of
from kvlockstep.targets import ENGINES, Target, check_contract, known_faults, known_targets, resolve
from kvlockstep.trace import load_trace, save_trace
from kvlockstep.watchdog import Watchdog

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_time(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `2h`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise UsageError(f"--time {text!r}: give a positive number of seconds, or one with s, m or h, like 10m")
    return float(match[1]) * UNITS[match[2]]


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


target_option = click.option(
    "--target", "targets", multiple=True, metavar="NAME|MODULE:FACTORY", help="What to run; may be repeated."
)
profile_option = click.option("--profile", metavar="|".join(PROFILES), help="How much to run (default quick).")
seed_option = click.option("--seed", type=int, help="Seed of the random and Hypothesis drivers (default 0).")
dir_option = click.option("--dir", "directory", help="Directory of failing traces (default .kvlockstep/failures).")
json_option = click.option("--json", "as_json", is_flag=True, help="Results as JSON on stdout.")
config_option = click.option(
    "--config", default="pyproject.toml", show_default=True, help="File with [tool.kvlockstep]."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvlockstep")
def cli() -> None:
    """Executable specifications of KV-cache managers, run in lockstep against yours until they diverge.

    Exit codes: 0 holds, 1 violated, 2 usage or configuration, 3 inconclusive, 4 internal error.
    """


@cli.command()
@click.argument("contracts", nargs=-1)
@_options(target_option, profile_option, seed_option, dir_option, json_option, config_option)
@click.option(
    "--driver", "drivers", multiple=True, metavar="|".join(DRIVERS), help="Only these drivers; may be repeated."
)
def check(
    contracts: Sequence[str],
    targets: Sequence[str],
    profile: str | None,
    seed: int | None,
    directory: str | None,
    as_json: bool,
    config: str,
    drivers: Sequence[str],
) -> None:
    """Saved failures, exhaustive exploration, Hypothesis, then random episodes.

    Without CONTRACTS, every contract; without --target, every target that comes with the package or is configured.
    """
    settings = load_config(Path(config))
    budget = profile_of(profile or settings.profile)
    where = Path(directory or settings.dir)
    if unknown := [driver for driver in drivers if driver not in DRIVERS]:
        raise UsageError(f"unknown driver {unknown[0]!r}; known: {', '.join(DRIVERS)}")
    report = Report()
    chosen = _chosen_targets(contracts, targets, settings, report)
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
            )
        report.targets.append(done)
        if not as_json:
            print_target(console, done)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        print_summary(console, report)
    sys.exit(EXIT_CODES[report.verdict])


def _chosen_targets(contracts: Sequence[str], specs: Sequence[str], settings: Config, report: Report) -> list[Target]:
    names = [check_contract(name) for name in contracts] or list(settings.contracts) or list(MODELS)
    if specs and len(names) != 1:
        raise UsageError("--target needs one CONTRACT, so that it is clear what the target implements")
    chosen = []
    for contract in names:
        wanted = specs or settings.targets.get(contract, ())
        for spec in wanted or [name for name in known_targets(contract) if name != "reference"]:
            try:
                chosen.append(resolve(contract, spec))
            except UsageError as error:
                if wanted or spec not in ENGINES:
                    raise
                report.skipped[f"{contract} on {spec}"] = str(error)
    return chosen


@cli.command()
@click.argument("contract")
@_options(target_option, dir_option, json_option)
@click.option("--time", "time_text", help="Stop after this time, like 60s.")
@click.option("--depth", type=click.IntRange(min=1), help="Stop at this depth.")
def explore(
    contract: str,
    targets: Sequence[str],
    directory: str | None,
    as_json: bool,
    time_text: str | None,
    depth: int | None,
) -> None:
    """Every operation in every state of the contract's small scopes, breadth first."""
    target = _one_target(contract, targets)
    model_type = model_of(contract)
    seconds = parse_time(time_text) if time_text else None
    where = Path(directory or Config.dir)
    report: list[Run] = []
    console = stdout()
    for scope in model_type.small_scopes:
        with progress_bar() as progress, Watchdog(5.0).watching() as watchdog:
            outcome = run_explore(
                model_type,
                target.factory,
                scope,
                watchdog=watchdog,
                seconds=seconds,
                max_depth=depth,
                progress=_step_counter(progress),
            )
        path = None
        if outcome.failure is not None:
            outcome.failure = shrink_failure(target, outcome.failure.but(target=target.name), profile_of("quick"))
            path = save_trace(outcome.failure, where)
        report.append(run_of(contract, target.name, outcome, path))
        if not as_json:
            sizes = ", ".join(f"{k}={v}" for k, v in scope.shown().items())
            console.print(
                f"{contract} on {target.name} with {sizes}: {outcome.steps:,} states, {outcome.states:,} unique, depth "
                f"{outcome.depth}, {outcome.steps:,} steps, {outcome.seconds:.1f} seconds, "
                f"{'exhausted' if outcome.exhausted else 'not exhausted'}",
                markup=False,
            )
        if outcome.failure is not None:
            break
    _end_runs(report, as_json)


@cli.command()
@click.argument("contract")
@_options(target_option, profile_option, dir_option, json_option)
@click.option("--time", "time_text", default="60s", show_default=True, help="How long, like 90s, 10m or 8h.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Worker processes.")
@click.option("--seed", type=int, default=0, show_default=True)
def fuzz(
    contract: str,
    targets: Sequence[str],
    profile: str | None,
    directory: str | None,
    as_json: bool,
    time_text: str,
    jobs: int,
    seed: int,
) -> None:
    """Random episodes in worker processes until the time is up; Ctrl-C ends it early and loses nothing."""
    target = _one_target(contract, targets)
    seconds = parse_time(time_text)
    with progress_bar() as progress:
        task = progress.add_task("starting")
        campaign = run_campaign(
            target,
            profile_of(profile or "quick"),
            seconds=seconds,
            jobs=jobs,
            seed=seed,
            directory=Path(directory or Config.dir),
            progress=lambda c: progress.update(
                task, description=f"{c.steps:,} steps, {c.failures} failures, {len(c.findings)} findings"
            ),
        )
    verdict = VIOLATED if campaign.findings else INCONCLUSIVE if campaign.missed else HOLDS
    if as_json:
        laws = {law.id: "held" for law in model_of(contract).laws}
        laws.update(dict.fromkeys(campaign.not_checked, "not_checked"))
        laws.update({trace.law: "violated" for trace, _ in campaign.findings.values()})
        runs = [
            {
                "contract": contract,
                "target": target.name,
                "driver": "random",
                "verdict": verdict,
                "steps": campaign.steps,
                "states": campaign.episodes,
                "seconds": round(campaign.seconds, 3),
                "laws": laws,
                "reach": dict(sorted(campaign.reach.items())),
                "trace": next((str(path) for _, path in campaign.findings.values()), None),
            }
        ]
        traces = [str(path) for _, path in campaign.findings.values()]
        extra = {"traces": traces, "failures": campaign.failures, "lost_workers": campaign.lost_workers}
        click.echo(json.dumps({"verdict": verdict, "runs": runs, **extra}))
    else:
        print_campaign(stdout(), campaign)
    sys.exit(EXIT_CODES[verdict])


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@_options(target_option, json_option)
@click.option("--format", "trace_format", type=click.Choice(["kvlockstep", "mooncake"]), default="kvlockstep")
@click.option("--skip-bad", is_flag=True, help="mooncake: skip and count malformed lines.")
@click.option("--limit", type=click.IntRange(min=1), help="mooncake: only the first requests.")
@click.option(
    "--blocks", type=click.IntRange(min=1), default=8192, show_default=True, help="mooncake: size of the pool."
)
@click.option(
    "--block-size", type=click.IntRange(min=1), default=512, show_default=True, help="mooncake: tokens a block."
)
def replay(
    file: Path,
    targets: Sequence[str],
    as_json: bool,
    trace_format: str,
    skip_bad: bool,
    limit: int | None,
    blocks: int,
    block_size: int,
) -> None:
    """Plays a saved trace again and says FIXED, VIOLATED or FLAKY; or plays a request trace in Mooncake format."""
    if trace_format == "mooncake":
        target = _one_target("kv_manager", targets or ("blocks",))
        verdict, result = replay_mooncake(
            file,
            target,
            blocks=blocks,
            block_size=block_size,
            limit=limit,
            skip_bad=skip_bad,
            console=stdout(),
            as_json=as_json,
        )
        if as_json:
            click.echo(json.dumps(result))
        sys.exit(EXIT_CODES[verdict])
    trace = load_trace(file)
    if len(targets) > 1:
        raise UsageError("replay takes one --target")
    if not targets and not trace.target:
        raise UsageError(f"{file} names no target; give one with --target")
    spec = targets[0] if targets else trace.target
    verdict, word, page, run = replay_twice(resolve(trace.contract, spec), trace, file)
    if as_json:
        click.echo(json.dumps({"verdict": verdict, "word": word, "runs": [run.to_json()]}))
    else:
        console = stdout()
        console.print(page, markup=False)
        console.print(word)
    sys.exit(EXIT_CODES[verdict])


@cli.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Contracts with their targets, laws, reach goals and faults."""
    known = {
        contract: {
            "targets": known_targets(contract),
            "laws": {law.id: law.statement for law in model.laws},
            "goals": {goal.id: goal.statement for goal in model.goals},
            "faults": known_faults(contract),
        }
        for contract, model in MODELS.items()
    }
    if as_json:
        click.echo(json.dumps(known))
        return
    console = stdout()
    for contract, parts in known.items():
        console.print(f"[bold]{contract}[/bold]")
        for kind, rows in parts.items():
            console.print(f"  {kind}")
            width = max(map(len, rows))
            for name, text in rows.items():
                console.print(f"    {name:<{width}}  {text}", markup=False)


@cli.command()
@click.argument("names", nargs=-1)
@json_option
@click.option("--time", "time_text", default="30s", show_default=True, help="For each proof.")
def prove(names: Sequence[str], as_json: bool, time_text: str) -> None:
    """CrossHair on the small pure functions that the rest stands on; NAMES choose some of the proofs.

    A proof that was not exhausted in its time is not called proved; it makes the verdict inconclusive.
    """
    from kvlockstep.proving import NOT_EXHAUSTED, REFUTED, print_proofs  # noqa: PLC0415
    from kvlockstep.proving import prove as run_proofs  # noqa: PLC0415

    proofs = list(run_proofs(parse_time(time_text), tuple(names)))
    verdicts = {proof.verdict for proof in proofs}
    verdict = VIOLATED if REFUTED in verdicts else INCONCLUSIVE if NOT_EXHAUSTED in verdicts else HOLDS
    if as_json:
        click.echo(json.dumps({"verdict": verdict, "proofs": [vars(proof) for proof in proofs]}))
    else:
        print_proofs(stdout(), proofs)
    sys.exit(EXIT_CODES[verdict])


@cli.command()
@click.argument("what", nargs=-1, metavar="[drivers|block_pool|radix_cache|kv_store]...")
@json_option
def bench(what: Sequence[str], as_json: bool) -> None:
    """Speed as ratios inside one run: drivers against each other, implementations against their floors."""
    from kvlockstep.benching import BENCHES, bench_drivers, print_drivers, print_speeds  # noqa: PLC0415

    if unknown := [name for name in what if name not in ("drivers", *BENCHES)]:
        raise UsageError(f"unknown bench {unknown[0]!r}; known: drivers, {', '.join(BENCHES)}")
    results: dict[str, list[dict[str, Any]]] = {}
    for name in what or ("drivers", *BENCHES):
        if name == "drivers":
            drivers = bench_drivers()
            results[name] = [vars(row) for row in drivers]
            if not as_json:
                print_drivers(stdout(), drivers)
        else:
            speeds = BENCHES[name]()
            results[name] = [{**vars(row), "ratio": row.ratio} for row in speeds]
            if not as_json:
                print_speeds(stdout(), name, speeds)
    if as_json:
        click.echo(json.dumps(results))


def _one_target(contract: str, specs: Sequence[str]) -> Target:
    check_contract(contract)
    if len(specs) > 1:
        raise UsageError("this command takes one --target")
    default = next(name for name in known_targets(contract) if name != "reference")
    return resolve(contract, specs[0] if specs else default)


def _step_counter(progress: Progress) -> Callable[[int], None]:
    task = progress.add_task("exploring")
    return lambda steps: progress.update(task, description=f"{steps:,} steps")


def _end_runs(runs: list[Run], as_json: bool) -> None:
    verdict = VIOLATED if any(run.failure for run in runs) else HOLDS
    if as_json:
        click.echo(json.dumps({"verdict": verdict, "runs": [run.to_json() for run in runs]}))
    else:
        console = stdout()
        for run in runs:
            if run.failure is not None:
                console.print(failure_page(run.failure, run.trace), markup=False)
        console.print(verdict.upper())
    sys.exit(EXIT_CODES[verdict])


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: turns what can go wrong into one message and an exit code."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        cli.main(args=None if arguments is None else list(arguments), prog_name="kvlockstep", standalone_mode=False)
    except UsageError as error:
        stderr().print(f"kvlockstep: {error}", markup=False)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        stderr().print("kvlockstep: interrupted")
        sys.exit(130)
    except Exception:
        stderr().print(f"kvlockstep: internal error\n{traceback.format_exc()}", markup=False)
        sys.exit(EXIT_CODES[ERROR])
