"""A deliberately faulty implementation: `@fault` declares it where it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

PACKAGE = __name__.rpartition(".")[0]
Factory = Callable[..., Any]
Made = TypeVar("Made", bound=Factory)


@dataclass(frozen=True)
class Fault:
    """An implementation that is wrong on purpose, a few lines over the reference.

    `make` is the factory; `what` says in one sentence what the code does wrong. `law` is the law that must catch it,
    `seen` names where the bug was met: reports or sources of reports.json, or `shape: ...` for a made-up one.
    """

    id: str
    contract: str
    make: Factory
    what: str
    law: str
    seen: tuple[str, ...]


# Every fault by its id, in the order of declaration. Importing kvlockstep.impl.faulty fills it.
FAULTS: dict[str, Fault] = {}


def fault(
    id: str, *, law: str, seen: tuple[str, ...], make: Callable[[Any], Factory] | None = None
) -> Callable[[Made], Made]:
    """Declares the decorated class as a fault, and returns the class unchanged.

    The contract is the folder or module under impl/faulty that the class is written in. The first paragraph of its
    docstring says what is wrong. `make` turns the class into the factory, where the class is only a part of a target.

    Raises ValueError for an id that is taken, a class outside impl/faulty, and a docstring without a full sentence.
    """

    def declare(made: Made) -> Made:
        where = f"fault {id!r} ({made.__module__}.{made.__qualname__})"
        if id in FAULTS:
            raise ValueError(f"{where}: another fault has this id; choose a new one")
        if not made.__module__.startswith(PACKAGE + "."):
            raise ValueError(f"{where} is outside {PACKAGE}: write it in impl/faulty/<contract>.py or <contract>/*.py")
        contract = made.__module__.removeprefix(PACKAGE + ".").partition(".")[0]
        FAULTS[id] = Fault(id, contract, make(made) if make else made, _sentence(made, where), law, seen)
        return made

    return declare


def _sentence(made: Factory, where: str) -> str:
    what = " ".join((made.__doc__ or "").partition("\n\n")[0].split())
    if not what.endswith("."):
        raise ValueError(
            f"{where} does not say what is wrong: begin its docstring with a full sentence, and run Python without -OO"
        )
    return what
