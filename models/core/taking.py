"""What a target returned, in the form that a judge uses."""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from kvlockstep.models.core.bounded import TooMany
from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.model import Divergence
from kvlockstep.properties.law import ERROR_CONTRACT, Refused

R = TypeVar("R")


def taken(take: Callable[[], R | None], answer: Any, method: Callable[..., Any] | str, wanted: str) -> R:
    """Converts a result to the form that the judge uses. Reading an iterator runs the target: it may hang or raise.

    `take` returns None, or raises, if the answer is not what was `wanted`. That is a Divergence of error_contract.
    """
    name = method_name(method)

    def attempt() -> R | None:
        try:
            return take()
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            if _raised_elsewhere(error):
                raise
            return None
        except TooMany as error:
            raise Divergence(ERROR_CONTRACT.id, f"{name} returned {error}") from None

    found = call_target(attempt, called=f"reading the result of {name}")
    if found is None or isinstance(found, Refused):
        raise Divergence(ERROR_CONTRACT.id, f"{name} returned {reprlib.repr(answer)}, not {wanted}")
    return found


def method_name(method: Callable[..., Any] | str) -> str:
    """Returns the name of a method of the target, as messages write it."""
    return str(getattr(method, "__name__", method))


def _raised_elsewhere(error: BaseException) -> bool:
    """True if the last frame is not of the judges: an iterator of the target has raised the error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return not str(frame.f_globals.get("__name__")).startswith("kvlockstep.models.")
