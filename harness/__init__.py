"""kvlockstep: executable specifications of KV-cache managers, run in lockstep against yours until they diverge.

`check(factory, contract=...)` checks a manager of your own, and raises CheckFailed with the failure page if it does not
hold. `machine(contract, factory)` makes a Hypothesis state machine of it. `record(manager, path)` is a Recorder: the
manager itself to its scheduler, which writes what it is asked for, to be replayed. Bad arguments raise UsageError.
Importing this package, or `kvlockstep.reference`, imports neither torch nor hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlockstep.core.errors import UsageError as UsageError
    from kvlockstep.machines import machine as machine
    from kvlockstep.runs.check import CheckFailed as CheckFailed
    from kvlockstep.runs.check import check as check
    from kvlockstep.runs.record import Recorder as Recorder
    from kvlockstep.runs.record import record as record

__version__ = "0.1.0"
__all__ = ["CheckFailed", "Recorder", "UsageError", "check", "machine", "record"]

_HOME = {
    "CheckFailed": "runs.check",
    "Recorder": "runs.record",
    "UsageError": "core.errors",
    "check": "runs.check",
    "machine": "machines",
    "record": "runs.record",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvlockstep' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kvlockstep.{_HOME[name]}"), name)
    globals()[name] = value
    return value
