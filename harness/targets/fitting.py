"""Everything in which an instance does not fit its contract: methods, their parameters, traits and their names."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from kvlockstep.models.requests.traits import WRONG, Kind, kinds_of, taken_traits
from kvlockstep.reference.contract import Contract, members
from kvlockstep.targets.trying import attempt

# How like a trait's name another one has to be. With these two an adapter's own `chunks`, `max_len`, `can_preempt` or
# `output_reserved` is left alone, and `can_forks`, `chunked`, `prefix_caching` or `max_lenght` is not.
CLOSE = 0.83
CLOSER = 0.88
FAMILY = "can_"
# Traits that change the parameters of methods: if the value of one is wrong, no method is said to be called otherwise.
DECIDING = ("groups", "drafts", "overlap", "partial_loads", "holds_bytes")


def misfits_of(contract: Contract, made: Any) -> list[str]:
    """A sentence for each thing that is wrong, none if `made` fits."""
    declared, wrong = ({}, []) if contract.declared is None else taken_traits(made, contract.declared)
    calls = _calls(contract, made, declared)
    read = [name for name, member in contract.methods.items() if isinstance(member, property)]
    needed = [name for name, kind in _kinds(contract).items() if kind.needed]
    missing = [name for name in (*calls, *read, *needed) if not _has(made, name)]
    undecided = any(name in contract.traits and name not in declared and _has(made, name) for name in DECIDING)
    judged = [] if undecided else [name for name in calls if name not in missing]
    odd = [text for name in judged if (text := _odd_call(made, name, calls[name]))]
    odd += [f"{name} is a method, but must be an attribute" for name in read if _is_method(made, name)]
    lacks = [f"{type(made).__name__} lacks for {contract.name}: {', '.join(missing)}"] if missing else []
    if unfilled := [name for name in calls if name not in missing and _is_stub(made, name)]:
        lacks.append(f"not filled in yet: {', '.join(unfilled)}")
    return [*lacks, *odd, *wrong, *_misspelt(contract, made, missing)]


def home(call: Any) -> str:
    """file:line where a factory or a method is written; nothing if that is not Python."""
    while isinstance(call, functools.partial):
        call = call.func
    called = getattr(call, "__init__", None) if isinstance(call, type) else inspect.unwrap(call)
    code = getattr(called, "__code__", None) or getattr(type(call).__call__, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    file, lines = attempt(inspect.getsourcefile, call).answer, attempt(inspect.getsourcelines, call).answer
    return f"{file}:{lines[1]}" if file and lines else ""


def _calls(contract: Contract, made: Any, declared: dict[str, Any]) -> dict[str, list[str]]:
    """The methods that a target with these traits has to have, with the names of their parameters.

    A trait whose value is wrong announces its method all the same.
    """
    calls = _parameters(contract.methods)
    if contract.declared is None:
        return calls
    least = {name: trait.least for name, trait in contract.traits.items() if trait.required}
    traits = contract.declared(**{**least, **declared})
    announced = {method: getattr(made, t, getattr(traits, t)) for method, t in contract.announced.items()}
    calls = {name: call for name, call in calls.items() if announced.get(name, True)}
    return {**calls, **_parameters(members(contract.instead(traits)))}


def _parameters(methods: Mapping[str, Any]) -> dict[str, list[str]]:
    functions = {name: member for name, member in methods.items() if inspect.isfunction(member)}
    return {name: list(inspect.signature(function).parameters)[1:] for name, function in functions.items()}


def _kinds(contract: Contract) -> dict[str, Kind]:
    return {} if contract.declared is None else kinds_of(contract.declared)


def _has(made: Any, name: str) -> bool:
    """A property that raises is there; hasattr of the instance would raise with it."""
    return hasattr(type(made), name) or hasattr(made, name)


def _odd_call(made: Any, name: str, parameters: list[str]) -> str:
    """Says why a method cannot be called with these arguments, all by position; None if it can."""
    method, error = attempt(getattr, made, name)
    if error is not None:
        return ""
    if not callable(method):
        return f"{name} is {reprlib.repr(method)}, not a method"
    at = f" ({where})" if (where := home(method)) else ""
    if inspect.iscoroutinefunction(method):
        return f"{name} is async, so a call would return a coroutine{at}"
    # A decorator that takes what it likes and hands it on is called itself, not what it wraps.
    signature, error = attempt(lambda: inspect.signature(method, follow_wrapped=False))
    if error is not None or attempt(signature.bind, *parameters).error is None:
        return ""
    return f"{name}({_shown(signature)}) is called as {name}({', '.join(parameters)}){at}"


def _is_stub(made: Any, name: str) -> bool:
    """Tells whether a method does nothing but raise NotImplementedError, as `new-target` writes it."""
    code = getattr(getattr(type(made), name, None), "__code__", None)
    return code is not None and code.co_names == ("NotImplementedError",)


def _shown(signature: inspect.Signature) -> str:
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown: list[str] = []
    for name, p in signature.parameters.items():
        if p.kind is p.KEYWORD_ONLY and not any(one.startswith("*") for one in shown):
            shown.append("*")
        shown.append(stars.get(p.kind, "") + name + ("" if p.default is p.empty else "=..."))
    return ", ".join(shown)


def _is_method(made: Any, name: str) -> bool:
    return inspect.isroutine(attempt(getattr, made, name).answer)


def _misspelt(contract: Contract, made: Any, missing: list[str]) -> Iterator[str]:
    """Attributes of the target that can hardly be anything but a missing method, or a trait, with its name misspelt."""
    kinds = _kinds(contract)
    known = {*kinds, *vars(contract.protocol), *contract.announced}
    own = {name: value for name, value in _own(made) if name not in known}
    for name, value in own.items():
        if callable(value):
            meant = [method for method in missing if method not in kinds and _likeness(name, method) >= CLOSE]
        else:
            meant = [trait for trait, kind in kinds.items() if _is_meant(made, name, value, trait, kind)]
        if meant:
            closest = max(meant, key=lambda other: _likeness(name, other))
            shown = f"{name}(...)" if callable(value) else f"{name} = {reprlib.repr(value)}"
            yield f"{shown} is not in {contract.name}: did you mean {closest}?"


def _own(made: Any) -> Iterator[tuple[str, Any]]:
    """The public attributes of the target's own classes and of the instance, looked at without running a property."""
    found: dict[str, Any] = {}
    for base in reversed(type(made).__mro__):
        if base.__module__ not in ("builtins", "typing", "abc"):
            found.update(vars(base))
    found.update(getattr(made, "__dict__", {}))
    return ((name, value) for name, value in found.items() if isinstance(name, str) and not name.startswith("_"))


def _is_meant(made: Any, name: str, value: Any, trait: str, kind: Kind) -> bool:
    """True if an attribute has a value of this trait and nearly its name, so that the trait must be meant."""
    if type(value) is not kind.exact or kind.take(value) is WRONG:
        return False
    if kind.exact is int and not kind.needed and name not in _declared_by_classes(made):
        # Numbers of an instance count something.
        return False
    set_too = _has(made, trait)
    return _likeness(name, trait) >= (CLOSER if set_too else CLOSE) and (kind.exact is bool or not set_too)


def _declared_by_classes(made: Any) -> set[str]:
    return {name for base in type(made).__mro__ for name in vars(base)}


def _likeness(name: str, other: str) -> float:
    """From 0 to 1, regardless of case and underscores; what many names begin with says nothing."""
    if name.startswith(FAMILY) and other.startswith(FAMILY):
        name, other = name.removeprefix(FAMILY), other.removeprefix(FAMILY)
    return SequenceMatcher(None, name.lower().replace("_", ""), other.lower().replace("_", "")).ratio()
