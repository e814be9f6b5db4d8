"""`new-target`: a starting adapter with the methods to fill in, and a test beside it."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from kvlockstep.commands.options import complete_contract, example
from kvlockstep.core.errors import UsageError
from kvlockstep.reference import contracts
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.contract import Contract, members
from kvlockstep.show.console import stdout
from kvlockstep.targets.registry import check_contract
from kvlockstep.targets.signatures import documented, home_of, literal, signature_of

WIDTH = 120


@click.command("new-target", epilog=example("kvlockstep new-target my_manager"))
@click.argument("name")
@click.option(
    "--contract",
    default="kv_manager",
    show_default=True,
    shell_complete=complete_contract,
    metavar="CONTRACT",
    help="Contract that the adapter implements.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory to write to (default: the current one).",
)
def new_target_command(name: str, contract: str, directory: Path) -> None:
    """Write NAME.py, an adapter with methods to fill in, and test_NAME.py, which checks it.

    Existing files are never overwritten.
    """
    check_contract(contract)
    if name in CONTRACTS:
        raise UsageError(f"NAME is {name}, a contract: kvlockstep new-target NAME --contract {name}")
    require_module_name(name)
    if not directory.is_dir():
        raise UsageError(f"--dir {directory}: no such directory")
    adapter, test = directory / f"{name}.py", directory / f"test_{name}.py"
    if existing := [path for path in (adapter, test) if path.exists()]:
        raise UsageError(f"{existing[0]} exists already; nothing was written")
    inside = (directory / "__init__.py").exists()
    for path, text in ((adapter, adapter_source(name, contract)), (test, test_source(name, contract, inside))):
        try:
            path.write_text(text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    console = stdout()
    console.print(f"wrote {adapter}: implement the methods that raise NotImplementedError", markup=False)
    console.print(f"wrote {test}: run it with `pytest {shlex.quote(str(test))}`, or", markup=False)
    target = f"{name if adapter.parent == Path() else adapter}:{class_name(name)}"
    console.print(f"kvlockstep check {contract} --target {shlex.quote(target)}", markup=False)


def require_module_name(name: str) -> None:
    """Raises UsageError for a name that no module of the user's own can have."""
    if not name.isidentifier() or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        raise UsageError(f"{name!r} cannot be a module's name: give letters, digits and _, like my_manager")


def class_name(module: str) -> str:
    """The name of the class in a module: my_manager has MyManager."""
    return "".join(part[:1].upper() + part[1:] for part in module.split("_") if part) or "Target"


def test_source(module: str, contract: str, inside: bool) -> str:
    """A pytest module that checks the adapter; `inside` a package it imports it from there."""
    name = class_name(module)
    return (
        f'"""{name} against the contract {contract}."""\n\n'
        f"import kvlockstep\n\nfrom {'.' if inside else ''}{module} import {name}\n\n\n"
        f"def test_{module}_holds():\n"
        f'    """`check` raises, with the failure page, if a law is violated or a goal missed."""\n'
        f'    kvlockstep.check({name}, contract="{contract}")\n'
    )


def adapter_source(module: str, contract: str) -> str:
    """A class with every method of the contract's protocol; each raises NotImplementedError."""
    known = CONTRACTS[contract]
    methods = members(known.protocol)
    body = [_docstring(f"What does {class_name(module)} wrap? `kvlockstep explain {contract}` explains its contract.")]
    body += _traits(known)
    body += ["", *_init(known)]
    for name, member in methods.items():
        body += ["", *_method(name, member, documented(known, name) or f"See `kvlockstep explain {contract}`.")]
    imports = _imports(known, list(methods.values()))
    head = [
        f'"""{class_name(module)}: a target of the contract {contract}."""',
        "",
        "from __future__ import annotations",
    ]
    lines = [*head, *([""] if imports else []), *imports, "", "", f"class {class_name(module)}:"]
    return "\n".join([*lines, *(f"    {line}".rstrip() for line in body)]) + "\n"


def _init(contract: Contract) -> list[str]:
    kinds = {name: _kind(value) for name, value in contract.probe.items()}
    lines = [f"def __init__({', '.join(['self', *(f'{name}: {kind}' for name, kind in kinds.items())])}) -> None:"]
    required = [trait.name for trait in contract.traits.values() if trait.required]
    if required:
        sizes = " * ".join(name for name in ("blocks", "block_size", "units") if name in kinds)
        values = {"block_size": "block_size", "total": sizes}
        return [*lines, *(f"    self.{name} = {values[name]}" for name in required)]
    return [*lines, *([f"    self._{name} = {name}" for name in kinds] or ["    pass"])]


def _kind(value: object) -> str:
    return "Any" if value is None else type(value).__name__


def _traits(contract: Contract) -> list[str]:
    optional = [trait for trait in contract.traits.values() if not trait.required]
    lines = [line for trait in optional for line in _trait(f"{trait.name} = {literal(trait.default)}", trait.summary)]
    head = ["", "# Traits: a run covers only what is declared here."]
    if any(trait.types for trait in optional):
        head.append(f"# {contracts.__name__} has the types that they name.")
    return [*head, *lines] if lines else []


def _trait(assignment: str, summary: str) -> list[str]:
    line = f"{assignment}  # {summary}"
    if len(line) + 4 <= WIDTH:
        return [line]
    return [*(f"# {text}" for text in wrap(summary, WIDTH - 6, break_on_hyphens=False)), assignment]


def _method(name: str, member: Any, about: str) -> list[str]:
    head = ["@property"] if isinstance(member, property) else []
    line = f"def {signature_of(name, member, own=True)}:"
    return [
        *head,
        line,
        *(f"    {text}" for text in _docstring_lines(about)),
        f'    raise NotImplementedError("{name}")',
    ]


def _docstring(text: str) -> str:
    return f'"""{text}"""'


def _docstring_lines(text: str) -> list[str]:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    if len(paragraphs) == 1 and len(paragraphs[0]) + 14 <= WIDTH:
        return [_docstring(paragraphs[0])]
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += ([""] if lines else []) + wrap(paragraph, WIDTH - 12, break_on_hyphens=False)
    return [f'"""{lines[0]}', *lines[1:], '"""']


def _imports(contract: Contract, members: Sequence[Any]) -> list[str]:
    """Imports for the names that the annotations use: from where adapters find them, or else the contract does."""
    parameters = {type(value).__name__: type(value) for value in contract.probe.values()}
    namespace = {**parameters, **vars(sys.modules[contract.protocol.__module__])}
    wanted: dict[str, set[str]] = {}
    for name in _names_used(contract, members):
        if name in namespace and not hasattr(builtins, name):
            home = str(getattr(namespace[name], "__module__", ""))
            # An alias like Rows = Sequence[...] says that it is from collections.abc, and is not there.
            there = hasattr(sys.modules.get(home), name)
            elsewhere = home if there else contract.protocol.__module__
            wanted.setdefault(home_of(name, namespace[name], elsewhere), set()).add(name)
    groups = [[m for m in sorted(wanted) if m.startswith("kvlockstep.") == own] for own in (False, True)]
    lines = [[f"from {module} import {', '.join(sorted(wanted[module]))}" for module in group] for group in groups]
    return [*lines[0], *([""] if lines[0] and lines[1] else []), *lines[1]]


def _names_used(contract: Contract, members: Sequence[Any]) -> Iterable[str]:
    annotations = [_kind(value) for value in contract.probe.values()]
    for member in members:
        function = member.fget if isinstance(member, property) else member
        annotations += map(str, inspect.get_annotations(function).values() if function else ())
    return {name for annotation in annotations for name in re.findall(r"[A-Za-z_]\w*", annotation)}
