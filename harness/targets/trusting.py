"""Whose code a trace may run: the target in its header is imported and called, and anybody can write a header."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from kvlockstep.core.errors import UsageError
from kvlockstep.core.target_names import one_name
from kvlockstep.core.trace import TARGETS_BY_ID, Trace
from kvlockstep.targets.moved import renamed
from kvlockstep.targets.registry import CPU, Target, known_divergences, known_targets, resolve

trust_option = click.option("--trust", is_flag=True, help="Import and call any target that a trace names.")


def is_known(contract: str, spec: str) -> bool:
    """True if a target comes with kvlockstep or is registered by an installed package, by name or by its factory.

    A target of a known divergence counts, too. Another factory in our own modules does not, since `module:attribute`
    can name anything that a module imports.
    """
    name, _, device = spec.rpartition("@")
    if name and device != CPU and ":" not in device:
        return is_known(contract, name)
    known = known_targets(contract)
    if spec.startswith(TARGETS_BY_ID) or spec in known or renamed(spec) in known.values():
        return True
    return any(spec == one.target and contract == one.contract for one in known_divergences())


def target_of(
    trace: Trace,
    path: Path,
    given: str | None = None,
    configured: Collection[str] = (),
    trust: bool = False,
) -> Target:
    """The target that is `given`, or else the one that the trace names.

    Raises UsageError if there is none, and for one that is neither known nor `configured` unless `trust` is set:
    nothing of it is imported then.
    """
    if given is not None:
        return resolve(trace.contract, given)
    if not trace.target:
        raise UsageError(f"{path} names no target; give one with --target")
    if not (trust or one_name(trace.target) in map(one_name, configured) or is_known(trace.contract, trace.target)):
        raise UsageError(
            f"{path}:1: the trace names the target {trace.target!r}, code that is neither part of kvlockstep nor "
            "registered nor in [tool.kvlockstep] targets; give --trust if you know where the trace comes from, or "
            "--target to play it on a target of yours"
        )
    return resolve(trace.contract, trace.target)
