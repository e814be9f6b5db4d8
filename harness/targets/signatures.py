"""Signatures: the methods and the values of a contract as Python code."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

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
    """The classes of ours that the methods of a contract take or return, and those in their fields, by name."""
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
    return found


def literal(value: object) -> str:
    """A value as Python writes it, strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"
