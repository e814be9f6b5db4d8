"""Signatures: the methods and the values of a contract as Python code."""

from __future__ import annotations

import inspect
from typing import Any

from kvlockstep.reference.contract import Contract
from kvlockstep.targets.importing import load


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


def literal(value: object) -> str:
    """A value as Python writes it, strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _parameter(parameter: inspect.Parameter) -> str:
    default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"
