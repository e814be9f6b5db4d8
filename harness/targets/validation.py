"""Validation of a factory against a contract: everything that is wrong, in one message."""

from __future__ import annotations

import inspect
import reprlib
from typing import Any

from kvlockstep.core.capture import quiet
from kvlockstep.core.errors import UsageError
from kvlockstep.core.isolation import ChildLost, in_child
from kvlockstep.models.core.model import Factory
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.targets.extras import missing_extra
from kvlockstep.targets.fitting import home, misfits_of
from kvlockstep.targets.trying import LIMIT_SECONDS, attempt, attempt_in_time, describe_failed_call, frames_of

# What is no target, though a class of its own below one of these may be.
DATA = (bool, int, float, str, bytes, tuple, list, dict, set)


def require_usable(contract_name: str, name: str, factory: Factory, apart: bool = True) -> None:
    """Makes one instance with the contract's probe sizes, and looks at it. Raises UsageError with all that is wrong.

    With `apart` a child does so first, which may end or hang. Then this process does: what the first call imports or
    compiles is there for the children that are forked later, whose calls have little time.
    """
    wrong: list[str] = []
    if apart:
        try:
            wrong = in_child(lambda _: misfits(contract_name, factory, name), LIMIT_SECONDS)
        except ChildLost as lost:
            said = [*lost.details, *(f"| {line}" for line in lost.printed)]
            wrong = ["\n  ".join([f"{lost} while an instance was made and looked at", *said])]
    with quiet():
        wrong = wrong or misfits(contract_name, factory, name)
    if wrong:
        raise UsageError(f"target {name!r}: {'; '.join(wrong)}")


def misfits(contract_name: str, factory: Factory, name: str = "") -> list[str]:
    """Makes one instance and inspects it; returns a sentence for each thing that is wrong.

    Runs code of the target, each part for LIMIT_SECONDS at most, and keeps nothing of it. Raises ExtraMissing.
    """
    contract = CONTRACTS[contract_name]
    signature = f"make({', '.join(contract.probe)})"
    if not callable(factory):
        return [f"it is not callable; a {contract_name} factory is {signature}"]
    sizes = tuple(contract.probe.values())
    made, error = attempt_in_time(factory, *sizes)
    if missing := missing_extra(name, error):
        raise missing
    if error is not None:
        wrong = describe_failed_call(error) + _unreached(factory, signature, sizes, error)
        return [f"its factory, called as {signature} with {sizes}, {wrong}"]
    if odd := _no_instance(made):
        return [f"its factory returned {odd}; {signature} has to return a {contract_name}"]
    found, error = attempt_in_time(misfits_of, contract, made)
    if error is not None:
        return [f"reading the attributes of what its factory made {describe_failed_call(error)}"]
    return list(found)


def _unreached(factory: Factory, signature: str, sizes: tuple[Any, ...], error: BaseException) -> str:
    """Names the place of a factory whose code did not run, and the way out if it takes other arguments; else ""."""
    if not isinstance(error, TypeError) or frames_of(error):
        return ""
    where = f" ({at})" if (at := home(factory)) else ""
    parameters = attempt(inspect.signature, factory).answer
    if parameters is not None and attempt(parameters.bind, *sizes).error is None:
        return where
    return f"{where}; name a function {signature} that calls it, or a functools.partial with the other arguments"


def _no_instance(made: Any) -> str:
    """Describes the returned object, if it cannot be a target of any contract."""
    if inspect.iscoroutine(made):
        made.close()
        return "a coroutine, since it is async"
    if inspect.isgenerator(made):
        return "a generator, since it has a yield"
    if isinstance(made, type):
        return f"the class {made.__qualname__}, not an instance of it"
    return reprlib.repr(made) if made is None or type(made) in DATA else ""
