"""Implementations that are wrong on purpose: what the suite must catch.

Each is declared with `@fault` in `<contract>.py` or in a module of the folder `<contract>/`. Importing this package
imports all of these modules, so FAULTS is complete.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from kvlockstep.impl.faulty.fault import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "faults_of", "import_faults"]


def import_faults(path: Iterable[str] = __path__, prefix: str = f"{__name__}.") -> None:
    """Imports every module below `path`; importing it declares its faults. Skips names with a leading _."""
    for module in pkgutil.iter_modules(path, prefix):
        # _narrow_offsets needs Triton, which only the tests on a GPU may ask for.
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        imported = importlib.import_module(module.name)
        if module.ispkg:
            import_faults(imported.__path__, f"{module.name}.")


def faults_of(contract: str) -> list[Fault]:
    """The faults of a contract, in the order of declaration."""
    return [fault for fault in FAULTS.values() if fault.contract == contract]


import_faults()
