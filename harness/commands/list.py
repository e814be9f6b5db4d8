"""`list`: contracts, targets, drivers, laws, goals and faults."""

from __future__ import annotations

from importlib.metadata import entry_points

import click
from rich.console import Console

from kvlockstep.commands.options import example, json_option, print_json
from kvlockstep.drivers import CHECK_DRIVERS, DRIVERS, SHARD_DRIVERS
from kvlockstep.models.registry import MODELS
from kvlockstep.show.console import stdout
from kvlockstep.targets.registry import ENTRY_POINTS, built_in, known_faults, known_targets

_ABOUT_DRIVERS = {
    **{name: DRIVERS[name].about for name in (*CHECK_DRIVERS, *SHARD_DRIVERS)},
    "replay": "a saved trace",
}


def catalogue() -> dict[str, dict[str, dict[str, str]]]:
    """Every contract with its targets, drivers, laws, goals and faults, each by name."""
    return {
        contract: {
            "targets": {name: _described(contract, name, path) for name, path in known_targets(contract).items()},
            "drivers": _ABOUT_DRIVERS,
            "laws": {law.id: law.statement for law in model.laws},
            "goals": {goal.id: goal.statement for goal in model.goals},
            "faults": known_faults(contract),
        }
        for contract, model in MODELS.items()
    }


def _described(contract: str, name: str, path: str) -> str:
    if name in built_in(contract):
        return path
    packages = [e.dist.name for e in entry_points(group=ENTRY_POINTS) if e.name == f"{contract}.{name}" and e.dist]
    return f"{path} (registered by {packages[0]})" if packages else path


def ignored_entry_points() -> list[str]:
    """Entry points of other packages that name no contract, or a target of ours, with what is wrong."""
    ignored = []
    for entry in entry_points(group=ENTRY_POINTS):
        contract, _, name = entry.name.partition(".")
        package = entry.dist.name if entry.dist else "a package"
        if contract not in MODELS or not name:
            ignored.append(f"{entry.name} of {package} is ignored: names are CONTRACT.NAME, as in kv_manager.mine")
        elif name in built_in(contract):
            ignored.append(f"{entry.name} of {package} is ignored: kvlockstep has a target of this name")
    return ignored


@click.command("list", epilog=example("kvlockstep list"))
@json_option
def list_command(as_json: bool) -> None:
    """List the contracts with their targets, laws, goals and faults, and the drivers."""
    known = catalogue()
    if as_json:
        print_json(known)
        return
    console = stdout()
    drivers: dict[str, str] = {}
    for contract, parts in known.items():
        drivers = parts.pop("drivers")
        console.print(f"[bold]{contract}[/bold]")
        for kind, rows in parts.items():
            if rows:
                console.print(f"  {kind}")
                _print_rows(console, rows, "    ")
    console.print("[bold]drivers[/bold]")
    _print_rows(console, drivers, "  ")
    for complaint in ignored_entry_points():
        console.print(f"entry point {complaint}", markup=False)


def _print_rows(console: Console, rows: dict[str, str], indent: str) -> None:
    width = max(map(len, rows), default=0)
    for name, text in rows.items():
        console.print(f"{indent}{name:<{width}}  {text}", markup=False)
