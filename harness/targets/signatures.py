"""Signatures: the methods and the values of a contract as Python code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from kvlockstep.reference import contracts
from kvlockstep.reference.contract import Contract
from kvlockstep.targets.importing import load

OURS = "kvlockstep.reference."


def signature_of(name: str, member: Any, own: bool = False) -> str:
    """A method of a protocol as it is written in it: `free(slot: int) -> None`; with `own` for a class's body."""
    if isinstance(member, property):
        answer = inspect.signature(member.fget).return_annotation if member.fget else "Any"
        return f"{name}(self) -> {answer}" if own else f"{name}: {answer}"
    signature = inspect.signature(member)
    parameters = [_parameter(p) for n, p in signature.parameters.items() if n != "self"]
    return f"{name}({', '.join((['self'] if own else []) + parameters)}) -> {signature.return_annotation}"


def documented(contract: Contract, name: str) -> str:
    """The docstring of a method in its protocol, or else in the reference; "" if neither has one."""
    member = contract.methods[name]
    text = inspect.getdoc(member) or inspect.getdoc(getattr(load(contract.reference), name, None))
    return text or ""


def types_of(contract: Contract) -> dict[str, type]:
    """The classes of ours that the methods of a contract take or return, those in their fields, and those that its
    traits bring, by name.
    """
    found: dict[str, type] = {}

    def look(hint: Any) -> None:
        if isinstance(hint, type) and hint.__module__.startswith(OURS) and hint.__name__ not in found:
            found[hint.__name__] = hint
            for inner in get_type_hints(hint).values():
                look(inner)
        for inner in get_args(hint):
            look(inner)

    for member in contract.methods.values():
        for hint in get_type_hints(member.fget if isinstance(member, property) else member).values():
            look(hint)
    for trait in contract.traits.values():
        for brought in trait.types:
            look(brought)
    return found


def fields_of(of: type) -> Iterator[str]:
    """The fields of a class as it declares them: `rids: Sequence[str] = ()`."""
    parameters = inspect.signature(of).parameters if get_type_hints(of) else {}
    for name in get_type_hints(of):
        if name in parameters:
            parameter = parameters[name]
            # A NamedTuple keeps its annotations as forward references, a dataclass as text.
            hint = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
            yield _parameter(parameter.replace(annotation=hint))


def home_of(name: str, value: object, elsewhere: str) -> str:
    """The module to import a name from: the one for adapters if it has this very thing, or else `elsewhere`."""
    ours = name in contracts.__all__ and getattr(contracts, name) == value
    return contracts.__name__ if ours else elsewhere


def literal(value: object) -> str:
    """A value as Python writes it, strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"
