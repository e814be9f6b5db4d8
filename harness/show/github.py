"""Results as annotations of a GitHub workflow."""

from __future__ import annotations

from collections.abc import Iterable

from kvlockstep.show.findings import Results, source_of


def github_annotations(results: Results) -> Iterable[str]:
    """Workflow commands of GitHub: an error for each finding, a warning for each target that is inconclusive."""
    for finding in results.findings:
        file, line = source_of(finding.contract, finding.target)
        place = {"file": file, "line": str(line)} if file else {}
        title = f"{finding.contract} on {finding.target}: {finding.law}"
        yield _command("error", finding.page, **place, title=title)
    for (contract, target), reason in results.gaps.items():
        yield _command("warning", reason, title=f"{contract} on {target}: inconclusive")


def _command(kind: str, message: str, **properties: str) -> str:
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    values = {
        name: value.replace("%", "%25")
        .replace("\r", "%0D")
        .replace("\n", "%0A")
        .replace(":", "%3A")
        .replace(",", "%2C")
        for name, value in properties.items()
    }
    return f"::{kind} {','.join(f'{name}={value}' for name, value in values.items())}::{escaped}"
