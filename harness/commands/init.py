"""`init`: everything that a repository needs to check its manager, from an adapter to a nightly campaign."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from kvlockstep.commands.new_target import adapter_source, class_name, require_module_name, test_source
from kvlockstep.commands.options import complete_contract, example
from kvlockstep.core.errors import UsageError
from kvlockstep.runs.config import read_toml
from kvlockstep.show.console import stdout
from kvlockstep.targets.registry import check_contract

# The target, the contract and the installation that the templates name, as docs/ci.md shows them.
TARGET, CONTRACT, INSTALLED = "my_package.kv_adapter:MyManager", "kv_manager", " --editable ."
# What the templates install, and the variable that says so.
PACKAGE, VARIABLE = "kvlockstep", "KVLOCKSTEP"
IGNORED = ".kvlockstep/"
SERVICES = {
    "github": {
        ".github/workflows/kvlockstep.yml": "github-gate.yml",
        ".github/workflows/kvlockstep-overnight.yml": "github-overnight.yml",
    },
    "gitlab": {".gitlab/kvlockstep.yml": "gitlab.yml"},
    "none": {},
}


@click.command(
    "init",
    epilog=example("kvlockstep init kv_adapter --ci gitlab"),
)
@click.argument("name", default="kv_adapter")
@click.option(
    "--contract",
    default=CONTRACT,
    show_default=True,
    shell_complete=complete_contract,
    metavar="CONTRACT",
    help="Contract that the adapter implements.",
)
@click.option(
    "--ci",
    type=click.Choice(tuple(SERVICES)),
    metavar="|".join(SERVICES),
    default="github",
    show_default=True,
    help="CI service.",
)
@click.option(
    "--requirement",
    default=PACKAGE,
    show_default=True,
    metavar="REQUIREMENT",
    help="What CI installs as kvlockstep: a name with or without a version, the path of a wheel, or a git URL.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Root of the repository (default: the current directory).",
)
def init_command(name: str, contract: str, ci: str, requirement: str, directory: Path) -> None:
    """Write an adapter NAME.py, its test, the configuration and the CI workflows into a repository.

    Existing files stay as they are, and so does an existing [tool.kvlockstep] table. A missing table is appended to
    pyproject.toml.
    """
    check_contract(contract)
    require_module_name(name)
    if not directory.is_dir():
        raise UsageError(f"--dir {directory}: no such directory")
    project = directory / "pyproject.toml"
    settings = read_toml(project, optional=True)
    target = f"{name}.py:{class_name(name)}"
    texts = {f"{name}.py": adapter_source(name, contract)}
    texts[f"test_{name}.py"] = test_source(name, contract, inside=(directory / "__init__.py").exists())
    for file, template in SERVICES[ci].items():
        texts[file] = _workflow(template, target, contract, requirement, installable="project" in settings)
    written = [_write(directory / file, text) for file, text in texts.items()]
    written.append(_configure(project, settings, contract, target))
    written.append(_ignore(directory / ".gitignore"))
    console = stdout()
    for line in written:
        console.print(line, markup=False)
    fresh = written[0].startswith("wrote")
    if ci == "gitlab":
        console.print("include .gitlab/kvlockstep.yml from .gitlab-ci.yml, and schedule a pipeline for the night")
    first = f"implement the methods of {name}.py that raise NotImplementedError, then run" if fresh else "run"
    console.print(f"next: {first}\n  kvlockstep check", markup=False)


def _workflow(template: str, target: str, contract: str, requirement: str, installable: bool) -> str:
    text = (files("kvlockstep") / "templates" / "ci" / template).read_text(encoding="utf-8")
    text = text.replace(TARGET, target).replace(f" {CONTRACT} ", f" {contract} ")
    if requirement != PACKAGE:
        # A JSON string is one of YAML as well.
        text = text.replace(f"{VARIABLE}: {PACKAGE}\n", f"{VARIABLE}: {json.dumps(requirement)}\n")
    # Nothing to install in a repository that is no package: the adapter is found by its path.
    return text if installable else text.replace(INSTALLED, "")


def _write(path: Path, text: str) -> str:
    """Writes a file that does not exist yet. Returns what became of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return f"kept  {path}: it exists already"
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return f"wrote {path}"


def _text_of(path: Path) -> str:
    """The text of a file, empty if it does not exist yet."""
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _append(path: Path, text: str, gap: str = "") -> None:
    """Appends whole lines to a file, behind `gap` if it has any text."""
    if former := _text_of(path):
        text = ("" if former.endswith("\n") else "\n") + gap + text
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def _ignore(path: Path) -> str:
    """Adds the folder of failing traces to .gitignore. Returns what became of it."""
    if IGNORED in _text_of(path).splitlines():
        return f"kept  {path}: it has {IGNORED} already"
    _append(path, f"{IGNORED}\n")
    return f"wrote {IGNORED} to {path}"


def _names(table: Any, contract: str, target: str) -> bool:
    """True if a [tool.kvlockstep] table checks this target by itself."""
    targets = table.get("targets", {}).get(contract, ()) if isinstance(table, dict) else ()
    named = target in (targets if isinstance(targets, list) else [targets])
    return named and contract in table.get("contracts", [contract])


def _configure(project: Path, settings: dict[str, Any], contract: str, target: str) -> str:
    tool = settings.get("tool")
    if isinstance(tool, dict) and "kvlockstep" in tool:
        if _names(tool["kvlockstep"], contract, target):
            return f"kept  {project}: it names {target} already"
        return (
            f"kept  {project}: it has a [tool.kvlockstep] table already; set targets.{contract} = {target!r} there, "
            f"and have {contract} among its contracts"
        )
    table = f'[tool.kvlockstep]\ncontracts = ["{contract}"]\ntargets.{contract} = "{target}"\n'
    _append(project, table, gap="\n")
    return f"wrote [tool.kvlockstep] to {project}"
