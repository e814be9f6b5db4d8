"""Imports what `module:attribute` or `file.py:attribute` names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlockstep.core.errors import UsageError, did_you_mean
from kvlockstep.core.parent import IMPORTING, doing
from kvlockstep.impl.engines.loading import EngineMissing
from kvlockstep.targets.extras import missing_extra
from kvlockstep.targets.moved import renamed
from kvlockstep.targets.trying import attempt, describe_failed_call

FORMS = "give module:factory or file.py:factory"
SUFFIX = ".py"
# Folders of files that were named by their path; what lies beside such a file is imported from there.
FOLDERS: list[Path] = []


def load(spec: str, target: str | None = None) -> Any:
    """Returns what `module:attribute` or `file.py:attribute` names. Raises UsageError, even if the import exits.

    `target` is the name that the user knows, if it is another.
    """
    name, _, attribute = renamed(spec).rpartition(":")
    by_path = name.endswith(SUFFIX)
    if not name or not attribute or (not by_path and (name.startswith(".") or "/" in name)):
        raise UsageError(f"cannot import target {spec!r}: {FORMS}")
    file = _find(name) if by_path else None
    if by_path and file is None:
        hint = did_you_mean(Path(name).name, (path.name for path in Path(name).parent.glob("*" + SUFFIX)))
        raise UsageError(f"cannot import target {spec!r}: there is no file {name}{hint}")
    with doing(IMPORTING, spec):
        found, error = attempt(import_file, file) if file is not None else attempt(importlib.import_module, name)
    if isinstance(error, (EngineMissing, UsageError)):
        raise UsageError(str(error)) from error
    if error is None:
        for part in attribute.split("."):
            holder = found
            found, error = attempt(getattr, found, part)
            if isinstance(error, AttributeError):
                hint = did_you_mean(part, dir(holder))
                raise UsageError(f"cannot import target {spec!r}: module {name} has no {attribute!r}{hint}") from error
    if missing := missing_extra(target or spec, error):
        raise missing from error
    if error is not None:
        raise UsageError(
            f"cannot import target {spec!r}: {describe_failed_call(error).removeprefix('raised ')}"
        ) from error
    return found


def _find(name: str) -> Path | None:
    """The file of this name, from here or from where modules are looked for: a worker elsewhere has that from us."""
    return next((path for path in (Path(name), *(Path(entry, name) for entry in sys.path)) if path.is_file()), None)


def import_file(path: Path) -> ModuleType:
    """The module of a file: named after it, in the packages that it lies in; its neighbours can be imported.

    Where something else has that name, it is named by its path. Raises UsageError if a neighbour would be mixed up with
    one of another file that was named by its path, and whatever the module raises.
    """
    file = path.resolve()
    folder, parts, top = file.parent, [file.stem], file
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, parts, top = folder.parent, [folder.name, *parts], folder / "__init__.py"
    if _is_taken(parts[0], top):
        folder, parts = file.parent, [str(file)]
    _require_own_neighbours(file, folder)
    if folder not in FOLDERS:
        FOLDERS.append(folder)
        sys.path.insert(0, str(folder))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    return sys.modules.get(parts[0]) or _executed(parts[0], file)


def _executed(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_taken(name: str, file: Path) -> bool:
    """True if another file, or the standard library, has a module of this name, loaded or not."""
    return _file_of(name) != file if name in sys.modules else name in sys.stdlib_module_names


def _require_own_neighbours(file: Path, folder: Path) -> None:
    """A module has one file in a process, that of its first import, for all who import it."""
    modules = {path: path.stem for path in folder.glob("*" + SUFFIX) if path != file}
    packages = {path: path.parent.name for path in folder.glob("*/__init__.py")}
    for neighbour, name in {**modules, **packages}.items():
        known = _file_of(name)
        if known is None or known == neighbour.resolve():
            continue
        if not {known.parent, known.parent.parent}.isdisjoint(FOLDERS):
            raise UsageError(f"{known} and {neighbour} cannot both be imported as {name}: rename one")


def _file_of(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None
