"""Results as SARIF 2.1.0."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from kvlockstep.core.trace import replay_line
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.show.bug_reports import public
from kvlockstep.show.findings import REACH, Results, relative, source_of

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(results: Results) -> str:
    """SARIF 2.1.0: a result for each finding, at the target's source; a warning for each inconclusive target."""
    rules: dict[str, dict[str, Any]] = {}
    entries = []
    for finding in results.findings:
        rule = f"{finding.contract}/{finding.law}"
        rules.setdefault(rule, _rule(rule, finding.contract, finding.law))
        text = f"{finding.contract} on {finding.target} violates {finding.law}: {finding.message}"
        entry = _entry(rules, rule, "error", text, finding.contract, finding.target, finding.trace)
        entry["message"]["markdown"] = f"{_escaped(text)}\n\n{_fenced(finding.page)}"
        identity = f"{finding.contract}/{finding.target}/{finding.law}/{finding.shape}"
        entry["partialFingerprints"] = {"kvlockstepShape/v1": identity}
        entries.append(entry)
    for (contract, target), reason in results.gaps.items():
        rule = f"{contract}/{REACH}"
        rules.setdefault(rule, _rule(rule, contract, REACH))
        text = f"{contract} on {target} is inconclusive, {reason}"
        entry = _entry(rules, rule, "warning", text, contract, target, None)
        entry["partialFingerprints"] = {"kvlockstepShape/v1": f"{contract}/{target}/{REACH}"}
        entries.append(entry)
    driver = {"name": "kvlockstep", "version": version("kvlockstep"), "rules": list(rules.values())}
    skipped = [{"level": "note", "message": {"text": f"skipped {w}: {why}"}} for w, why in results.skipped.items()]
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if skipped:
        invocation["toolExecutionNotifications"] = skipped
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": entries}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(id_: str, contract: str, law: str) -> dict[str, Any]:
    known = {law.id: law for law in model_of(contract).laws} if contract in MODELS else {}
    every = "Every goal of the contract is met, and every law is evaluated."
    statement = known[law].statement if law in known else every
    rule: dict[str, Any] = {
        "id": id_,
        "name": "".join(part.capitalize() for part in law.split("_")),
        "shortDescription": {"text": statement},
        "help": {"text": f"kvlockstep explain {law}" if law in known else f"kvlockstep explain {contract}"},
    }
    if law in known and (seen := public(known[law].answers)):
        rule["fullDescription"] = {"text": f"{statement} Seen in {', '.join(seen)}."}
    return rule


def _entry(
    rules: Mapping[str, Any], rule: str, level: str, text: str, contract: str, target: str, trace: str | None
) -> dict[str, Any]:
    file, line = source_of(contract, target)
    uri = file or relative(trace) or "pyproject.toml"
    entry: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": list(rules).index(rule),
        "level": level,
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}},
                "logicalLocations": [{"fullyQualifiedName": target, "kind": "type"}],
            }
        ],
    }
    if trace is not None:
        entry["properties"] = {"replay": replay_line(target, trace)}
    return entry


def _fenced(text: str) -> str:
    """A block of code in Markdown, which no text can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)
