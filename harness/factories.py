"""Whether a factory makes what a contract asks for; if not, everything that is wrong in one message."""

from __future__ import annotations

import functools
import inspect
import reprlib
from typing import Any

from kvlockstep.errors import UsageError
from kvlockstep.models.model import Factory
from kvlockstep.reference.catalogue import CONTRACTS, Contract
from kvlockstep.reference.contracts import KV_OPTIONAL, Traits
from kvlockstep.reference.scheduler_contract import SCHEDULER_OPTIONAL, SchedulerTraits
from kvlockstep.trying import places, tried, tried_in_time, what

OPTIONAL = {"kv_manager": (Traits, KV_OPTIONAL), "kv_scheduler": (SchedulerTraits, SCHEDULER_OPTIONAL)}
# What is no target, though a class of its own below one of these may be.
DATA = (bool, int, float, str, bytes, tuple, list, dict, set)


def require_usable(contract_name: str, name: str, factory: Factory) -> None:
    """Makes one instance with the contract's probe sizes, and looks at it. Raises UsageError."""
    contract = CONTRACTS[contract_name]
    signature = f"make({', '.join(contract.probe)})"
    if not callable(factory):
        raise UsageError(f"target {name!r} is not callable; a {contract_name} factory is {signature}")
    sizes = tuple(contract.probe.values())
    made, error = tried_in_time(factory, *sizes)
    if error is not None:
        wrong = what(error) + _unreached(factory, signature, sizes, error)
        raise UsageError(f"target {name!r}: its factory, called as {signature} with {sizes}, {wrong}") from error
    if odd := _no_instance(made):
        raise UsageError(f"target {name!r}: its factory returned {odd}; {signature} has to return a {contract_name}")
    missing, error = tried_in_time(_missing, contract, made)
    if error is not None:
        raise UsageError(f"target {name!r}: a look at the attributes of what its factory made {what(error)}") from error
    if missing:
        raise UsageError(f"target {name!r} ({type(made).__name__}) lacks for {contract_name}: {', '.join(missing)}")


def _unreached(factory: Factory, signature: str, sizes: tuple[Any, ...], error: BaseException) -> str:
    """Where a factory is whose code was not reached, and what to do if it takes other arguments; else nothing."""
    if not isinstance(error, TypeError) or places(error):
        return ""
    where = f" ({at})" if (at := home(factory)) else ""
    parameters = tried(inspect.signature, factory).answer
    if parameters is not None and tried(parameters.bind, *sizes).error is None:
        return where
    return f"{where}; name a function {signature} that calls it, or a functools.partial with the other arguments"


def home(factory: Factory) -> str:
    """file:line where a factory is written; nothing if that is not Python."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    called = getattr(factory, "__init__", None) if isinstance(factory, type) else inspect.unwrap(factory)
    code = getattr(called, "__code__", None) or getattr(type(factory).__call__, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    file, lines = tried(inspect.getsourcefile, factory).answer, tried(inspect.getsourcelines, factory).answer
    return f"{file}:{lines[1]}" if file and lines else ""


def _no_instance(made: Any) -> str:
    """What was returned, if it cannot be a target whatever the contract is."""
    if inspect.iscoroutine(made):
        made.close()
        return "a coroutine, for it is async"
    if inspect.isgenerator(made):
        return "a generator, for it has a yield"
    if isinstance(made, type):
        return f"the class {made.__qualname__}, not an instance of it"
    return reprlib.repr(made) if made is None or type(made) in DATA else ""


def _missing(contract: Contract, made: Any) -> list[str]:
    """Attributes that it should have and has not. A property that raises is there; hasattr would raise with it."""
    wanted = [name for name in vars(contract.protocol) if not name.startswith("_")]
    if contract.name in OPTIONAL:
        wanted += ["block_size", "total"]
        traits, optional = OPTIONAL[contract.name]
        declared = {method: getattr(made, trait, getattr(traits, trait)) for method, trait in optional.items()}
        wanted = [name for name in dict.fromkeys([*wanted, *declared]) if declared.get(name, True)]
    return [name for name in wanted if not (hasattr(type(made), name) or hasattr(made, name))]
