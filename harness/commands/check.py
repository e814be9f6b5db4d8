"""`check`: every driver on every target of the contracts."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from kvlockstep.commands.options import (
    IN_PROCESS,
    complete_contract,
    config_option,
    dir_option,
    example,
    in_process_option,
    jobs_option_for,
    json_option,
    options,
    print_json,
    profile_option,
    seed_option,
    show_output_option,
    target_option,
)
from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.core.files import require_writable
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.system import cores
from kvlockstep.core.target_names import one_name
from kvlockstep.drivers import CHECK_DRIVERS
from kvlockstep.models.registry import MODELS
from kvlockstep.runs.check import check_targets
from kvlockstep.runs.config import Config, load_config
from kvlockstep.runs.results import EXIT_CODES, CheckResult
from kvlockstep.show.console import (
    CheckProgress,
    print_summary,
    print_target,
    print_target_in_full,
    progress_bar,
    stderr,
    stdout,
)
from kvlockstep.show.findings import results_of
from kvlockstep.show.machine_formats import machine_formats, publish
from kvlockstep.targets import Target, resolve
from kvlockstep.targets.extras import ExtraMissing
from kvlockstep.targets.registry import CPU, ENGINE_TARGETS, check_contract, known_targets, on_device


@click.command(
    "check",
    epilog=example("kvlockstep check kv_manager --target my_manager.py:MyManager"),
)
@click.argument("contracts", nargs=-1, shell_complete=complete_contract)
@options(target_option, profile_option, seed_option, dir_option, json_option, config_option, machine_formats)
@click.option(
    "--driver", "drivers", multiple=True, metavar="|".join(CHECK_DRIVERS), help="Run only this driver. Repeatable."
)
@options(in_process_option, show_output_option)
@options(jobs_option_for("Check N targets at the same time; the results are the same", None))
@click.option("-v", "--verbose", is_flag=True, help="Show for each target its traits, laws, drivers and goals.")
@click.option(
    "--device", default=CPU, show_default=True, metavar="cpu|cuda", help="Device that holds the tensors of targets."
)
def check_command(
    contracts: Sequence[str],
    targets: Sequence[str],
    profile: str | None,
    seed: int | None,
    directory: str | None,
    as_json: bool,
    config: Path | None,
    drivers: Sequence[str],
    in_process: bool,
    jobs: int | None,
    verbose: bool,
    device: str,
) -> None:
    """Check targets against CONTRACTS: saved failures, exploration, Hypothesis, then random episodes.

    Without CONTRACTS it checks those in the configuration, or else every contract. Without --target it checks the
    targets in the configuration, or else every target that comes with the package.
    """
    settings = load_config(config)
    budget = profile_of(profile or settings.profile)
    where = Path(directory or settings.dir)
    if unknown := [driver for driver in drivers if driver not in CHECK_DRIVERS]:
        raise UsageError(f"unknown driver {unknown[0]!r}{known_names(unknown[0], CHECK_DRIVERS)}")
    if in_process and (jobs or 1) > 1:
        raise UsageError(f"--jobs {jobs}: {IN_PROCESS} checks one target after the other")
    report = CheckResult()
    chosen = _chosen_targets(contracts, targets, settings, report, device)
    require_writable(where)
    console = stderr() if as_json else stdout()
    label_width = max((len(f"{target.contract} on {target.name}") for target in chosen), default=0)
    started = time.perf_counter()
    progress = progress_bar()
    checks = check_targets(
        chosen,
        lambda _target: budget,
        seed=settings.seed if seed is None else seed,
        directory=where,
        emit=CheckProgress(progress),
        drivers=tuple(drivers) or CHECK_DRIVERS,
        in_process=in_process,
        jobs=jobs or cores(),
    )
    # The progress line has a thread, and workers are not forked beside one.
    with checks as results, progress:
        for done in results:
            report.targets.append(done)
            # While the progress line is shown, what is printed on stdout comes out on stderr.
            progress.stop()
            if verbose:
                print_target_in_full(console, done)
            elif not as_json:
                print_target(console, done, label_width)
            progress.start()
    if as_json:
        print_json(report.to_json())
    else:
        print_summary(console, report, time.perf_counter() - started, verbose)
    publish(results_of(report))
    sys.exit(EXIT_CODES[report.verdict])


def _chosen_targets(
    contracts: Sequence[str], specs: Sequence[str], settings: Config, report: CheckResult, device: str = CPU
) -> list[Target]:
    names = [check_contract(name) for name in contracts] or list(settings.contracts) or list(MODELS)
    if specs and len(names) != 1:
        raise UsageError("--target needs one CONTRACT, so that it is clear what the target implements")
    chosen: dict[tuple[str, str], Target] = {}
    for contract in names:
        wanted = specs or settings.targets.get(contract, ())
        for spec in wanted or [name for name in known_targets(contract) if name != "reference"]:
            try:
                target = resolve(contract, spec)
                target = target if device in (CPU, target.device) else on_device(target, device)
                # One that is named twice would replay what the other has just saved.
                chosen.setdefault((contract, one_name(target.name)), target)
            except ExtraMissing as missing:
                if wanted:
                    raise
                report.skipped[f"{contract} on {spec}"] = str(missing)
            except UsageError as error:
                if wanted or (spec not in ENGINE_TARGETS[contract] and device == CPU):
                    raise
                report.skipped[f"{contract} on {spec}"] = str(error)
    if not chosen:
        where = "" if device == CPU else f" on {device}"
        raise UsageError(f"nothing to check{where}: {'; '.join(report.skipped.values())}")
    return list(chosen.values())
