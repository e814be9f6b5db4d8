"""Runs code of a target that may raise anything, end the process or never return, and says where it did."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from kvlockstep.core import watchdog
from kvlockstep.models.core.calls import StepTimeout, call_target, describe_error, let_interrupt_out
from kvlockstep.models.core.model import Divergence

LIMIT_SECONDS = 60.0
OURS = (__file__, importlib.__file__, watchdog.__file__)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Attempt(NamedTuple):
    """The result of a call, or else the error that it raised."""

    answer: Any
    error: BaseException | None


def attempt(call: Callable[..., Any], /, *args: Any) -> Attempt:
    """Calls, and takes whatever is raised, SystemExit included, but for an interrupt."""
    try:
        return Attempt(call(*args), None)
    except BaseException as error:
        let_interrupt_out(error)
        return Attempt(None, error)


def attempt_in_time(call: Callable[..., Any], /, *args: Any) -> Attempt:
    """Makes the attempt for LIMIT_SECONDS at most; then the error is a StepTimeout."""
    try:
        with watchdog.Watchdog(LIMIT_SECONDS).watching():
            outcome = call_target(attempt, call, *args)
    except Divergence:
        # The time was up just when `attempt` had taken another error.
        return Attempt(None, StepTimeout())
    assert isinstance(outcome, Attempt)
    return outcome


def describe_failed_call(error: BaseException) -> str:
    """`raised ValueError: no memory (manager.py:12)`; the place is the target's, if any of its code ran."""
    lines = frames_of(error)
    if isinstance(error, SyntaxError) and error.filename:
        lines = [f"{error.filename}:{error.lineno}"]  # none of its code ran
    where = f" ({lines[-1]})" if lines else ""
    if isinstance(error, StepTimeout):
        return f"did not return within {LIMIT_SECONDS:g} s{where}"
    return f"raised {describe_error(error)}{where}"


def frames_of(error: BaseException) -> list[str]:
    """file:line of each call that led to an error; of those in installed packages only if there are no others."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in OURS and not frame.filename.startswith("<frozen")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(INSTALLED)]
    return [f"{frame.filename}:{frame.lineno}" for frame in own or frames]
