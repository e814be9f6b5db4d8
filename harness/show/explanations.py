"""Explanations of contracts and their parts, of laws and of faults, as plain values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, get_type_hints

from kvlockstep.core.errors import UsageError, did_you_mean
from kvlockstep.models.registry import MODELS
from kvlockstep.properties.law import Law
from kvlockstep.properties.why import WHY
from kvlockstep.reference import contracts
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.show.bug_reports import described
from kvlockstep.show.places import place_of, place_of_text
from kvlockstep.targets.registry import FAULT_PREFIX, faults, known_faults, known_targets
from kvlockstep.targets.signatures import OURS, documented, fields_of, home_of, literal, signature_of, types_of

KINDS = "contract, law, fault, goal, trait, method, type, function or rule"
RULE = re.compile(r"rule\s*(\d+)")


def names_to_explain() -> list[str]:
    """Contracts, laws, faults, goals, traits, methods, types, rules and functions, in this order."""
    laws = [law.id for model in MODELS.values() for law in model.laws]
    parts = [part["id"] for kind in PARTS for contract in CONTRACTS for part in PARTS[kind](contract)]
    return list(dict.fromkeys((*CONTRACTS, *laws, *faults(), *parts, *_exported())))


def explain(name: str) -> dict[str, Any]:
    """The explanation as plain values; `kind` is one of KINDS.

    `CONTRACT.NAME` and `CONTRACT/NAME` mean that contract's. Raises UsageError for an unknown name.
    """
    name = name.removeprefix(FAULT_PREFIX)
    if name in CONTRACTS:
        return _contract(name)
    of, id_ = _split(name)
    laws = [(c, law) for c, model in MODELS.items() if of in (None, c) for law in model.laws if law.id == id_]
    if laws:
        return _law(id_, laws)
    if name in faults():
        return _fault(name)
    parts = [p for kind in PARTS for c in CONTRACTS if of in (None, c) for p in PARTS[kind](c) if p["id"] == id_]
    if parts:
        return {"kind": parts[0]["kind"], "id": id_, "contracts": [{**part, "stated": _stated(part)} for part in parts]}
    if found := _exported().get(name):
        return {"kind": found["kind"], "id": name, "contracts": [found]}
    hint = did_you_mean(name, names_to_explain()) or "; `kvlockstep list` shows them"
    raise UsageError(f"no {KINDS} {name!r}{hint}")


def rules_named(contract: str, law: Law[Any]) -> dict[int, str]:
    """The rules of a contract that a law names by their number, in its statement or as its reason."""
    known = CONTRACTS[contract].rules if contract in CONTRACTS else {}
    return {n: known[n] for n in map(int, RULE.findall(" ".join([law.statement, *law.answers]).lower())) if n in known}


def _split(name: str) -> tuple[str | None, str]:
    """The contract in front of a name, if there is one, and the name; a rule is `rule 5`, however it is written."""
    of, separator, id_ = next(
        (parts for mark in "/. " if (parts := name.partition(mark))[0] in CONTRACTS), ("", "", name)
    )
    rule = RULE.fullmatch(id_.strip().lower())
    id_ = f"rule {rule[1]}" if rule else id_
    return (of if separator else None), id_


def _law(name: str, laws: Sequence[tuple[str, Law[Any]]]) -> dict[str, Any]:
    return {
        "kind": "law",
        "id": name,
        "why": WHY.get(name, ""),
        "contracts": [
            {
                "contract": contract,
                "statement": law.statement,
                "stated": place_of(law.check),
                "rules": {str(n): text for n, text in rules_named(contract, law).items()},
                "needs": list(law.needs),
                "bugs": described(law.answers),
                "faults": [f.id for f in faults().values() if f.contract == contract and f.law == name],
            }
            for contract, law in laws
        ],
    }


def _fault(name: str) -> dict[str, Any]:
    fault = faults()[name]
    law = MODELS[fault.contract].law(fault.law)
    return {
        "kind": "fault",
        "id": name,
        "contract": fault.contract,
        "shape": fault.what,
        "what": " ".join((fault.make.__doc__ or "").split()),
        "law": fault.law,
        "statement": law.statement if law is not None else "",
        "why": WHY.get(fault.law, ""),
        "bugs": described(fault.seen),
    }


def _contract(name: str) -> dict[str, Any]:
    model, contract = MODELS[name], CONTRACTS[name]
    seen = [*(a for law in model.laws for a in law.answers)]
    seen += [s for fault in faults().values() if fault.contract == name for s in fault.seen]
    methods = _methods(name)
    return {
        "kind": "contract",
        "id": name,
        "statement": contract.about,
        "target": " ".join((inspect.getdoc(contract.protocol) or "").split()),
        "factory": contract.factory,
        "methods": [part["signature"] for part in methods if not part["needs"]],
        "types": {part["signature"]: part["statement"] for part in _types(name)},
        "docs": {part["signature"]: part["statement"] for part in methods},
        "optional": {part["signature"]: part["needs"][0] for part in methods if part["needs"]},
        "traits": {part["signature"]: part["statement"] for part in _traits(name)},
        "laws": {law.id: law.statement for law in model.laws},
        "goals": {goal.id: goal.statement for goal in model.goals},
        "rules": {str(number): rule for number, rule in contract.rules.items()},
        "targets": known_targets(name),
        "faults": known_faults(name),
        "bugs": described(seen),
    }


def _part(kind: str, contract: str, id_: str, statement: str, signature: str = "", needs: str | None = None) -> Any:
    """A part of a contract. `needs` names the trait without which it is not there, in a list."""
    return {
        "kind": kind,
        "contract": contract,
        "id": id_,
        "signature": signature,
        "statement": statement,
        "needs": [needs] if needs else [],
    }


def _goals(contract: str) -> Iterator[dict[str, Any]]:
    for goal in MODELS[contract].goals:
        yield _part("goal", contract, goal.id, goal.statement, needs=goal.when)


def _traits(contract: str) -> Iterator[dict[str, Any]]:
    for trait in CONTRACTS[contract].traits.values():
        signature = trait.name if trait.required else f"{trait.name} = {literal(trait.default)}"
        yield _part("trait", contract, trait.name, trait.about, signature)


@cache
def _methods(contract: str) -> list[dict[str, Any]]:
    known = CONTRACTS[contract]
    return [
        _part(
            "method",
            contract,
            name,
            " ".join(documented(known, name).split()),
            signature_of(name, member),
            known.announced.get(name),
        )
        for name, member in known.methods.items()
    ]


def _rules(contract: str) -> Iterator[dict[str, Any]]:
    for number, text in CONTRACTS[contract].rules.items():
        yield _part("rule", contract, f"rule {number}", text)


@cache
def _types(contract: str) -> list[dict[str, Any]]:
    brought = {of.__name__: trait.name for trait in CONTRACTS[contract].traits.values() for of in trait.types}
    return [
        _part(
            "type",
            contract,
            name,
            _about(of),
            f"{name}({', '.join(get_type_hints(of))})",
            brought.get(name),
        )
        | _imported(of)
        for name, of in types_of(CONTRACTS[contract]).items()
    ]


@cache
def _exported() -> dict[str, dict[str, Any]]:
    """What is there for adapters and belongs to no contract alone: errors, protocols, traits and functions."""
    known = {name for contract in CONTRACTS for name in types_of(CONTRACTS[contract])}
    others = {name: getattr(contracts, name) for name in contracts.__all__ if name not in known}
    return {
        name: _part("type" if isinstance(of, type) else "function", "", name, _about(of))
        | _imported(of)
        | {"stated": place_of_text(rf"^(class|def) {name}\b", [of.__module__])}
        for name, of in others.items()
        if (isinstance(of, type) or inspect.isfunction(of)) and of.__module__.startswith(OURS)
    }


def _about(of: Any) -> str:
    return " ".join((inspect.getdoc(of) or "").split())


def _imported(of: Any) -> dict[str, Any]:
    """The line that imports a class or a function, and the fields or the parameters."""
    home = home_of(of.__name__, of, of.__module__)
    return {"import": f"from {home} import {of.__name__}", "fields": list(fields_of(of))}


PARTS: dict[str, Callable[[str], Iterable[dict[str, Any]]]] = {
    "goal": _goals,
    "trait": _traits,
    "method": _methods,
    "type": _types,
    "rule": _rules,
}


def _stated(part: dict[str, Any]) -> str:
    """The place of a goal, a trait, a method, a type or a rule, file:line; empty if it is not found."""
    contract, id_ = CONTRACTS[part["contract"]], part["id"]
    if part["kind"] == "method":
        return place_of(contract.methods[id_])
    if part["kind"] == "type":
        return place_of_text(rf"^class {id_}\b", [types_of(contract)[id_].__module__])
    if part["kind"] == "goal":
        return place_of_text(rf'\bGoal\(\s*"{re.escape(id_)}"', [f"kvlockstep.models.{contract.name}"])
    if part["kind"] == "trait":
        return place_of_text(rf"^    {id_}: ", [contract.declared.__module__] if contract.declared else [])
    package = contract.protocol.__module__.rpartition(".")[0]
    return place_of_text(rf"^    {id_.removeprefix('rule ')}: ", [package])
