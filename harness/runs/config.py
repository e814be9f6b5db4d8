"""`[tool.kvlockstep]` in pyproject.toml."""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.core.profiles import profile_of
from kvlockstep.targets.registry import check_contract

DEFAULT_FILE = Path("pyproject.toml")


@dataclass(frozen=True)
class Config:
    """Defaults of the command line: `targets` maps a contract to the targets that are checked."""

    contracts: tuple[str, ...] = ()
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    profile: str = "quick"
    seed: int = 0
    dir: str = ".kvlockstep/failures"


def load_config(path: Path | None = None) -> Config:
    """Reads the table of the file; without a path that of DEFAULT_FILE, which need not exist.

    A file without the table gives the defaults. Raises UsageError, which names the file and the key that is wrong.
    """
    file = DEFAULT_FILE if path is None else path
    document = read_toml(file, optional=path is None)
    table = _table(file, _table(file, document, "tool"), "kvlockstep", "tool.")
    if unknown := sorted(set(table) - set(READERS)):
        raise UsageError(
            f"{file}: unknown keys in [tool.kvlockstep]: {', '.join(unknown)}{known_names(unknown[0], sorted(READERS))}"
        )
    return Config(**{key: _read(file, key, value) for key, value in table.items()})


def read_toml(file: Path, optional: bool) -> dict[str, Any]:
    """The document in a file; empty for one that is `optional` and not there. Raises UsageError."""
    try:
        return tomllib.loads(file.read_bytes().decode())
    except FileNotFoundError as error:
        if optional:
            return {}
        raise UsageError(f"--config {file}: there is no such file") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line}: the file is not UTF-8: {error.reason}") from error
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # A number of too many digits is a plain ValueError.
        raise UsageError(f"cannot read {file}: it is not TOML: {error}") from error


def _table(file: Path, parent: dict[str, Any], name: str, prefix: str = "") -> dict[str, Any]:
    """The table of this name, empty if there is none. Raises UsageError if something else has the name."""
    found = parent.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"{file}: {prefix}{name} = {reprlib.repr(found)}: a table is needed, [{prefix}{name}]")
    return found


def _read(file: Path, key: str, value: Any) -> Any:
    """The value of a key as Config has it. Raises UsageError."""
    try:
        return READERS[key](value)
    except UsageError as error:
        raise UsageError(f"{file}: [tool.kvlockstep] {key} = {reprlib.repr(value)}: {error}") from error


def _contracts(value: Any) -> tuple[str, ...]:
    return tuple(map(check_contract, _texts(value, "a list of contracts is needed")))


def _targets(value: Any) -> dict[str, tuple[str, ...]]:
    needed = "a table of contract = target or list of targets is needed"
    if not isinstance(value, dict):
        raise UsageError(needed)
    return {
        check_contract(contract): _texts([specs] if isinstance(specs, str) else specs, needed)
        for contract, specs in value.items()
    }


def _texts(value: Any, needed: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UsageError(needed)
    return tuple(value)


def _profile(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError("the name of a profile is needed")
    return profile_of(value).name


def _seed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError("a number is needed")
    return value


def _dir(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise UsageError("a path is needed")
    return value


READERS: dict[str, Callable[[Any], Any]] = {
    "contracts": _contracts,
    "targets": _targets,
    "profile": _profile,
    "seed": _seed,
    "dir": _dir,
}
