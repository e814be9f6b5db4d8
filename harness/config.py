"""`[tool.kvlockstep]` in pyproject.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvlockstep.errors import UsageError
from kvlockstep.profiles import profile_of
from kvlockstep.targets import check_contract


@dataclass(frozen=True)
class Config:
    """Defaults of the command line: `targets` maps a contract to the targets that are checked."""

    contracts: tuple[str, ...] = ()
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    profile: str = "quick"
    seed: int = 0
    dir: str = ".kvlockstep/failures"


def load_config(path: Path) -> Config:
    """Reads the table, or answers the defaults if there is no such file or table. Raises UsageError."""
    try:
        document = tomllib.loads(path.read_text()) if path.is_file() else {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    table = document.get("tool", {}).get("kvlockstep", {})
    known = {f.name for f in fields(Config)}
    if unknown := sorted(set(table) - known):
        raise UsageError(
            f"{path}: unknown keys in [tool.kvlockstep]: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
        )
    return Config(**{name: _checked(path, name, value) for name, value in table.items()})


def _checked(path: Path, name: str, value: Any) -> Any:
    def fail(expected: str) -> UsageError:
        return UsageError(f"{path}: [tool.kvlockstep] {name} = {value!r}: {expected}")

    match name:
        case "contracts":
            if not isinstance(value, list):
                raise fail("a list of contracts is needed")
            return tuple(check_contract(str(contract)) for contract in value)
        case "targets":
            if not isinstance(value, dict):
                raise fail("a table of contract = target or list of targets is needed")
            return {
                check_contract(contract): (specs,) if isinstance(specs, str) else tuple(map(str, specs))
                for contract, specs in value.items()
            }
        case "profile":
            return profile_of(str(value)).name
        case "seed":
            if not isinstance(value, int) or isinstance(value, bool):
                raise fail("a number is needed")
        case "dir":
            if not isinstance(value, str):
                raise fail("a path is needed")
    return value
