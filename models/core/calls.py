"""Calls of a target: an error of the contract is a result, any other error a divergence."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kvlockstep.models.core.bounded import TooMany
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.safe_text import safe_text
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, Refused
from kvlockstep.reference.errors import ContractError

TRACEBACK_LINES = 12


class StepTimeout(BaseException):
    """Raised by a watchdog inside a call that does not return; a BaseException so that no target swallows it.

    Its arguments are lines that say where the call was cut off.
    """


R = TypeVar("R")


def call_target(call: Callable[..., R], /, *args: Any, called: str | None = None) -> R | Refused:
    """Calls the target. A contract error becomes Refused; a time-out, an exit, any other exception is a Divergence."""
    try:
        return enter_target(call, args)
    except ContractError as error:
        return Refused(type(error).__name__)
    except BaseException as error:
        let_interrupt_out(error)
        raise unexpected(error, called or str(getattr(call, "__name__", "call"))) from None


def inspect_target(look: Callable[..., R], /, *args: Any) -> R:
    """Looks at the target, which may raise nothing; a time-out or any exception is a Divergence."""
    try:
        return enter_target(look, args)
    except BaseException as error:
        let_interrupt_out(error)
        raise unexpected(error, "a look at it afterwards") from None


def enter_target(call: Callable[..., R], args: tuple[Any, ...]) -> R:
    """Runs code of the target. A watchdog raises StepTimeout only while this function is on the stack.

    So every caller must catch StepTimeout. Code outside of such a call, such as drivers and `except` clauses, is never
    interrupted. A process that the target has forked in the call, and that comes back from it, ends here.
    """
    try:
        return call(*args)
    finally:
        if _forked:
            os._exit(0)


# True in a process that code of a target has forked: it must not go on as a second harness.
_forked = False


def _note_fork() -> None:
    global _forked  # noqa: PLW0603
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_code is enter_target.__code__:
            _forked = True
            return


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def for_each(call: Callable[..., R], arguments: Iterable[tuple[Any, ...]]) -> list[R]:
    """Makes one call for each of these arguments. `call_target` enters the target once for all of them."""
    return [call(*of_one) for of_one in arguments]


def let_interrupt_out(error: BaseException) -> None:
    """Raises an interrupt again, unless this process ignores interrupts: then the target has raised it."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error


def unexpected(error: BaseException, call: str) -> Divergence:
    """Returns the Divergence of a call that took too long or raised an error of no contract.

    If the error is a Divergence already, it comes from a call inside this one and is returned.
    """
    if isinstance(error, Divergence):
        return error
    if isinstance(error, StepTimeout):
        return Divergence(TERMINATION.id, f"{call} did not return within the time limit", error.args)
    if isinstance(error, TooMany):
        return Divergence(ERROR_CONTRACT.id, f"{call} returned {error}")
    try:
        # The text of an error is code of the target as well: it may take too long, or raise.
        text, traceback_lines = enter_target(_told, (error,))
    except BaseException as other:
        let_interrupt_out(other)
        if isinstance(other, StepTimeout):
            message = f"{call} raised {type(error).__name__}, whose text did not come within the time limit"
            return Divergence(TERMINATION.id, message)
        text, traceback_lines = type(error).__name__, []
    return Divergence(ERROR_CONTRACT.id, f"{call} raised {text}", traceback_lines)


def _told(error: BaseException) -> tuple[str, list[str]]:
    return describe_error(error), _innermost(error)


def _innermost(error: BaseException) -> list[str]:
    """The end of an error's traceback: the innermost frames, each of them whole, and what was raised."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_globals is globals():
        # The call of the target is ours, and the same in every traceback.
        inside = inside.tb_next
    parts = [part.splitlines() for part in traceback.format_exception(type(error), error, inside)]
    last = next((i for i, part in enumerate(reversed(parts)) if part and part[0].startswith("  File ")), len(parts))
    lines = [line for part in parts[len(parts) - last :] for line in part][: TRACEBACK_LINES // 2]
    for part in reversed(parts[: len(parts) - last]):
        if len(lines) + len(part) > TRACEBACK_LINES:
            break
        lines = [*part, *lines]
    return lines


def describe_error(error: BaseException) -> str:
    """The type and the text of an error; the type alone if it cannot be printed."""
    try:
        text = str(error)
        return safe_text(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    except Exception:
        return type(error).__name__
