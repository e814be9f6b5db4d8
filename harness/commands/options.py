"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import click

from kvlockstep.core.capture import output_shown
from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import PROFILES
from kvlockstep.models.registry import MODELS
from kvlockstep.targets.registry import (
    ENGINE_PATH,
    FAULT_PREFIX,
    Target,
    check_contract,
    known_faults,
    known_targets,
    resolve,
)

F = TypeVar("F", bound=Callable[..., Any])
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
RESULTS = "kvlockstep.results"


def parse_time(text: str) -> float:
    """Seconds of `90`, `90s`, `10m` or `2h`. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise UsageError(f"--time {text!r}: give a positive number of seconds, or one with s, m or h, like 10m")
    return float(match[1]) * UNITS[match[2]]


def example(command: str) -> str:
    """The end of a help page: a command on a line of its own, to be copied whole."""
    return f"\b\nExample:\n  {command}"


def options(*wanted: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown by --help in this order."""

    def apply(function: F) -> F:
        for option in reversed(wanted):
            function = option(function)
        return function

    return apply


def _set_engine_path(_context: click.Context, _option: click.Parameter, folders: Sequence[str]) -> None:
    if missing := [folder for folder in folders if not os.path.isdir(folder)]:
        raise UsageError(f"--engine-path {missing[0]}: no such folder")
    if folders:
        os.environ[ENGINE_PATH] = os.pathsep.join(map(os.path.abspath, folders))


engine_path_option = click.option(
    "--engine-path",
    multiple=True,
    metavar="DIR",
    expose_value=False,
    callback=_set_engine_path,
    help="Folder that holds unpacked engines. Repeatable (default $KVLOCKSTEP_ENGINE_PATH).",
)


def complete_contract(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Contracts that begin like this, for the shell."""
    return [name for name in MODELS if name.startswith(incomplete)]


def complete_target(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Known targets and faults that begin like this, of the contracts on the command line, or of kv_manager."""
    # A word that is still to be completed keeps click from assigning the words before it to their parameters.
    contracts = [word for word in context.args if word in MODELS] or ["kv_manager"]
    names = [name for contract in contracts for name in known_targets(contract)]
    if incomplete.startswith(FAULT_PREFIX):
        names += [FAULT_PREFIX + id_ for contract in contracts for id_ in known_faults(contract)]
    return [name for name in names if name.startswith(incomplete)]


def complete_profile(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Profiles that begin like this, for the shell."""
    return [name for name in PROFILES if name.startswith(incomplete)]


def target_option(function: F) -> F:
    """--target and --engine-path."""
    option = click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="TARGET",
        shell_complete=complete_target,
        help="Implementation to check: a known name, module:factory or file.py:factory. Repeatable.",
    )
    return option(engine_path_option(function))


def _keep_stdout(context: click.Context, _option: click.Parameter, as_json: bool) -> bool:
    """Stdout is for the results: what a target prints goes to stderr."""
    if as_json:
        context.meta[RESULTS] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return as_json


def print_json(results: Any) -> None:
    """The results of a verb that was given --json."""
    click.echo(json.dumps(results), file=click.get_current_context().meta[RESULTS])


def profile_option_for(what: str, default: str = "quick") -> Callable[[F], F]:
    """--profile of a verb, for which it is `what`."""
    return click.option(
        "--profile",
        metavar="|".join(PROFILES),
        shell_complete=complete_profile,
        help=f"{what} (default {default}).",
    )


def seed_option_for(what: str) -> Callable[[F], F]:
    """--seed of a verb, for which it is the seed of `what`."""
    return click.option("--seed", type=int, metavar="N", help=f"Seed of {what} (default 0).")


def jobs_option_for(what: str, default: int | None) -> Callable[[F], F]:
    """--jobs of a verb, whose workers do `what`. Without a default it is None, which stands for all cores."""
    shown = "one for each core" if default is None else True
    return click.option(
        "--jobs", type=click.IntRange(min=1), default=default, show_default=shown, metavar="N", help=f"{what}."
    )


profile_option = profile_option_for("Budget of the run")
seed_option = seed_option_for("the random and Hypothesis drivers")
dir_option = click.option(
    "--dir", "directory", metavar="DIR", help="Directory of failing traces (default .kvlockstep/failures)."
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=_keep_stdout,
    help="Print the results as JSON on stdout and everything else on stderr.",
)


def _show_output(context: click.Context, _option: click.Parameter, shown: bool) -> None:
    if shown:
        context.with_resource(output_shown())


show_output_option = click.option(
    "-s",
    "--show-output",
    is_flag=True,
    expose_value=False,
    callback=_show_output,
    help="Show what targets print as they run, not only what the failing step printed.",
)
IN_PROCESS = "--in-process"
in_process_option = click.option(
    IN_PROCESS,
    is_flag=True,
    help="Run targets in this process, where a debugger can stop. A target that dies takes the check with it.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with a [tool.kvlockstep] table (default pyproject.toml, if present).",
)


def one_target(contract: str, specs: Sequence[str]) -> Target:
    """The target that --target names, or the contract's first that is not the reference. Raises UsageError."""
    check_contract(contract)
    if len(specs) > 1:
        raise UsageError("this command takes one --target")
    default = next(name for name in known_targets(contract) if name != "reference")
    return resolve(contract, specs[0] if specs else default)
