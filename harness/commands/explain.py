"""`explain`: what a law, a fault or a contract says, and which bugs are like it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

import click

from kvlockstep.commands.new_target import signature_of
from kvlockstep.commands.options import json_option, print_json
from kvlockstep.core.errors import UsageError
from kvlockstep.models.registry import MODELS
from kvlockstep.properties.law import Law
from kvlockstep.properties.why import WHY
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.show.console import stdout
from kvlockstep.targets.registry import BUILT_IN, FAULT_PREFIX, faults, known_faults, known_targets, load

MANY = 12


@cache
def bugs() -> dict[str, dict[str, str]]:
    """Bug reports by repository and thread: `symptom` and `cause`, in the words of this project."""
    text = files("kvlockstep").joinpath("bugs.json").read_text("utf-8")
    known: dict[str, dict[str, str]] = json.loads(text)
    return known


def names_to_explain() -> list[str]:
    """Contracts, laws and faults, in this order."""
    laws = [law.id for model in MODELS.values() for law in model.laws]
    return list(dict.fromkeys((*MODELS, *laws, *faults())))


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in names_to_explain() if name.startswith(incomplete)]


@click.command("explain")
@click.argument("name", metavar="LAW|FAULT|CONTRACT", shell_complete=_complete)
@json_option
def explain_command(name: str, as_json: bool) -> None:
    """What a law, a fault or a contract says, why it matters, and the real bugs behind it.

    A law that several contracts have is explained for each; CONTRACT/LAW names one of them.
    """
    explanation = explain(name)
    if as_json:
        print_json(explanation)
        return
    console = stdout()
    for line in _text(explanation):
        console.print(line, markup=False)


def explain(name: str) -> dict[str, Any]:
    """The explanation as plain values: `kind` is law, fault or contract. Raises UsageError for an unknown name."""
    name = name.removeprefix(FAULT_PREFIX)
    if name in MODELS:
        return _contract(name)
    of, slash, law = name.rpartition("/")
    laws = [(c, one) for c, m in MODELS.items() if not slash or c == of for one in m.laws if one.id == law]
    if laws:
        return _law(law, laws)
    for contract in MODELS:
        if name in known_faults(contract):
            return _fault(name)
    near = get_close_matches(name, names_to_explain(), 3)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; `kvlockstep list` shows them"
    raise UsageError(f"no contract, law or fault {name!r}{hint}")


def _law(name: str, laws: Sequence[tuple[str, Law[Any]]]) -> dict[str, Any]:
    return {
        "kind": "law",
        "id": name,
        "why": WHY.get(name, ""),
        "contracts": [
            {
                "contract": contract,
                "statement": law.statement,
                "needs": list(law.needs),
                "bugs": _bugs(law.answers),
                "faults": [f.id for f in faults().values() if f.contract == contract and f.law == name],
            }
            for contract, law in laws
        ],
    }


def _fault(name: str) -> dict[str, Any]:
    fault = faults()[name]
    law = MODELS[fault.contract].law(fault.law)
    documented = vars(fault.make).get("__doc__") if inspect.isclass(fault.make) else None
    return {
        "kind": "fault",
        "id": name,
        "contract": fault.contract,
        "shape": fault.shape,
        "what": " ".join((documented or "").split()),
        "law": fault.law,
        "statement": law.statement if law is not None else "",
        "why": WHY.get(fault.law, ""),
        "bugs": _bugs(fault.seen),
    }


def _contract(name: str) -> dict[str, Any]:
    model, contract = MODELS[name], CONTRACTS[name]
    reference = BUILT_IN.get(name, {}).get("reference")
    parts = [inspect.getdoc(load(reference)) if reference else "", inspect.getdoc(contract.protocol)]
    seen = [*(a for law in model.laws for a in law.answers)]
    seen += [s for fault in faults().values() if fault.contract == name for s in fault.seen]
    methods = [signature_of(m, member) for m, member in vars(contract.protocol).items() if not m.startswith("_")]
    return {
        "kind": "contract",
        "id": name,
        "statement": " ".join(" ".join(part.split()) for part in parts if part),
        "factory": f"make({', '.join(contract.probe)})",
        "methods": methods,
        "laws": {law.id: law.statement for law in model.laws},
        "goals": {goal.id: goal.statement for goal in model.goals},
        "targets": known_targets(name),
        "faults": known_faults(name),
        "bugs": _bugs(seen),
    }


def _bugs(ids: Iterable[str]) -> list[dict[str, str]]:
    known = bugs()
    return [{"id": id_, **known.get(id_, {})} for id_ in dict.fromkeys(ids)]


def _text(explained: dict[str, Any]) -> Iterable[str]:
    if explained["kind"] == "law":
        yield f"law {explained['id']}"
        for part in explained["contracts"]:
            yield f"\n{part['contract']}: {part['statement']}"
            if part["needs"]:
                yield f"  checked on targets with {', '.join(part['needs'])}"
            if part["faults"]:
                yield f"  faults that must violate it: {', '.join(part['faults'])}"
            yield from _bug_lines(part["bugs"], "  ")
        if explained["why"]:
            yield f"\nWhy it matters: {explained['why']}"
        return
    if explained["kind"] == "fault":
        yield f"fault {explained['id']} of {explained['contract']}: {explained['shape']}"
        if explained["what"]:
            yield f"  {explained['what']}"
        yield f"  must violate {explained['law']}: {explained['statement']}"
        if explained["why"]:
            yield f"\nWhy it matters: {explained['why']}\n"
        yield from _bug_lines(explained["bugs"], "")
        yield f"see it: kvlockstep check {explained['contract']} --target {FAULT_PREFIX}{explained['id']}"
        return
    yield f"contract {explained['id']}: {explained['statement']}"
    yield f"\nA target is a factory {explained['factory']} of objects with"
    yield from (f"  {method}" for method in explained["methods"])
    yield "\nlaws"
    yield from (f"  {law}: {statement}" for law, statement in explained["laws"].items())
    yield "\nmust happen at least once in a run that says anything"
    yield from (f"  {goal}: {statement}" for goal, statement in explained["goals"].items())
    yield f"\ntargets: {', '.join(explained['targets'])}"
    yield f"{len(explained['faults'])} faults to try it on: {', '.join(explained['faults'])}"
    yield from _bug_lines(explained["bugs"][:MANY], "")
    if len(explained["bugs"]) > MANY:
        yield f"and {len(explained['bugs']) - MANY} more; --json has all of them"


def _bug_lines(found: Sequence[dict[str, str]], indent: str) -> Iterable[str]:
    if found:
        yield f"{indent}seen in"
    for bug in found:
        about = f": {bug['symptom']} ({bug['cause']})" if "symptom" in bug else ""
        yield f"{indent}  {bug['id']}{about}"
