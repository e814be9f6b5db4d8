"""`explain`: a law, a fault, a contract or a part of one, with the bugs behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from kvlockstep.commands.options import example, json_option, print_json
from kvlockstep.show.bug_reports import bugs
from kvlockstep.show.console import stdout
from kvlockstep.show.explanations import explain, names_to_explain
from kvlockstep.targets.registry import FAULT_PREFIX

__all__ = ["bugs", "explain", "explain_command", "names_to_explain"]

# Bugs that are printed; --json has all of them.
MANY = 5


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in names_to_explain() if name.startswith(incomplete)]


@click.command("explain", epilog=example("kvlockstep explain write_isolation"))
@click.argument("words", metavar="NAME", nargs=-1, required=True, shell_complete=_complete)
@json_option
def explain_command(words: Sequence[str], as_json: bool) -> None:
    """Explain a law, a fault or a contract, or a goal, a trait, a method, a type or a rule of a contract.

    A name that several contracts have is explained for each; CONTRACT.NAME is that of one of them. Examples:
    write_isolation, kv-fork-no-copy, kv_manager, kv_manager.chunk, commit, kv_manager rule 5.
    """
    explanation = explain(" ".join(words))
    if as_json:
        print_json(explanation)
        return
    console = stdout()
    for line in _TEXTS.get(explanation["kind"], _part_text)(explanation):
        console.print(line, markup=False)


def _law_text(law: Mapping[str, Any]) -> Iterable[str]:
    yield f"law {law['id']}"
    if law["why"]:
        yield f"Why it matters: {law['why']}"
    for part in law["contracts"]:
        yield f"\n{part['contract']}: {part['statement']}"
        yield f"  stated in {part['stated']}"
        yield from (f"  rule {number}: {text}" for number, text in part["rules"].items())
        if part["needs"]:
            yield f"  checked on targets with {', '.join(part['needs'])}"
        if part["faults"]:
            yield f"  faults that must violate it: {', '.join(part['faults'])}"
    seen = {bug["id"]: bug for part in law["contracts"] for bug in part["bugs"]}
    if seen:
        yield ""
    yield from _bug_lines(list(seen.values()))


def _fault_text(fault: Mapping[str, Any]) -> Iterable[str]:
    yield f"fault {fault['id']} of {fault['contract']}: {fault['shape']}"
    if more := fault["what"].removeprefix(fault["shape"]).strip():
        yield f"  {more}"
    yield f"  must violate {fault['law']}: {fault['statement']}"
    if fault["why"]:
        yield f"\nWhy it matters: {fault['why']}\n"
    yield from _bug_lines(fault["bugs"])
    yield f"see it: kvlockstep check {fault['contract']} --target {FAULT_PREFIX}{fault['id']}"


def _contract_text(contract: Mapping[str, Any]) -> Iterable[str]:
    yield f"contract {contract['id']}: {contract['statement']}"
    if contract["target"]:
        yield f"\n{contract['target']}"
    yield f"\nA target is a factory {contract['factory']} of objects with"
    docs = contract["docs"]
    yield from (line for method in contract["methods"] for line in _method_text(method, docs[method]))
    if contract["optional"]:
        yield "\nand, if the trait says so,"
        for method, trait in contract["optional"].items():
            yield from _method_text(f"{method}  ({trait})", docs[method])
    for key in ("types", "traits", "laws", "goals", "rules"):
        if contract[key]:
            yield f"\n{GOALS if key == 'goals' else key}"
            yield from (f"  {name}: {statement}" for name, statement in contract[key].items())
    yield f"\ntargets: {', '.join(contract['targets'])}"
    yield f"{len(contract['faults'])} faults to try it on: {', '.join(contract['faults'])}"
    yield from _bug_lines(contract["bugs"])


GOALS = "goals: a run is conclusive only if each happens at least once"


def _method_text(signature: str, docs: str) -> Iterable[str]:
    yield f"  {signature}"
    if docs:
        yield f"    {docs}"


def _part_text(explanation: Mapping[str, Any]) -> Iterable[str]:
    for n, part in enumerate(explanation["contracts"]):
        if n:
            yield ""
        of = f" of {part['contract']}" if part["contract"] else ""
        yield f"{part['id'] if part['kind'] == 'rule' else part['kind'] + ' ' + part['id']}{of}"
        if part["signature"]:
            yield f"  {part['signature']}"
        if part["statement"]:
            yield f"  {part['statement']}"
        if part.get("import"):
            yield f"  {part['import']}"
        yield from (f"    {field}" for field in part.get("fields", ()))
        if part["needs"]:
            yield f"  only of targets with {', '.join(part['needs'])}"
        if part["stated"]:
            yield f"  stated in {part['stated']}"


def _bug_lines(found: Sequence[Mapping[str, str]]) -> Iterable[str]:
    if found:
        yield "seen in"
    for bug in found[:MANY]:
        about = f": {bug['symptom']} ({bug['cause']})" if "symptom" in bug else ""
        yield f"  {bug['id']}{about}"
        if "link" in bug:
            yield f"    {bug['link']}"
    if len(found) > MANY:
        yield f"  and {len(found) - MANY} more; --json has all of them"


_TEXTS = {"law": _law_text, "fault": _fault_text, "contract": _contract_text}
