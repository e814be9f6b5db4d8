"""Functions of an engine's module that cannot be imported whole, cut out of its source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.loading import Engine, EngineMissing


def cut(engine: Engine, module: str, names: tuple[str, ...], given: Mapping[str, Any]) -> SimpleNamespace:
    """Functions of a module by name, or methods as `Class.name`, as functions; `given` are the names that they use.

    Raises EngineMissing for a name that is not there: such a release is not known.
    """
    file = engine.root.joinpath(*module.split(".")).with_suffix(".py")
    body = ast.parse(file.read_text()).body
    found = {name: _function(body, name.split("."), file) for name in names}
    # Annotations may name what is not given.
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    tree = ast.fix_missing_locations(ast.Module([future, *found.values()], []))
    space = dict(given)
    exec(compile(tree, str(file), "exec"), space)
    return SimpleNamespace(**{name.rpartition(".")[2]: space[name.rpartition(".")[2]] for name in names})


def _function(body: list[ast.stmt], path: list[str], file: Path) -> ast.stmt:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and statement.name == path[0]:
            return _function(statement.body, path[1:], file) if len(path) > 1 else statement
    raise EngineMissing(f"{file} has no {path[0]}; this version is not known")
