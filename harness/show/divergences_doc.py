"""docs/divergences.md: every known divergence of an engine, from the files beside the adapters."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from kvlockstep.targets.registry import KnownDivergence, known_divergences

KINDS = {
    "bug": "the engine breaks a promise that it makes; the text says who reaches it, and what a user sees",
    "policy": "the engine decides otherwise than the contract, on purpose or within its documentation",
    "misuse": "a sequence of calls that the engine accepts, and that its own scheduler never makes",
}
HEAD = """# Where engines diverge

Written by `{command}` from impl/engines/ENGINE/known.toml.
Each divergence has a trace beside that file. `kvlockstep engines` replays all of them, to see which are still there.
{bugs} are bugs.

"""


def divergences_page(command: str) -> str:
    """The page, in the order of the engines."""
    known = known_divergences()
    kinds = "\n".join(f"- **{kind}**: {about}." for kind, about in KINDS.items())
    bugs = Counter(divergence.kind for divergence in known)["bug"]
    parts = [HEAD.format(command=command, bugs=bugs) + kinds]
    for engine, rows in groupby(known, key=lambda divergence: divergence.trace.parent.name):
        parts += [f"## {engine}", *map(_divergence, rows)]
    return "\n\n".join(parts) + "\n"


def _divergence(known: KnownDivergence) -> str:
    trace = f"impl/engines/{known.trace.parent.name}/{known.trace.name}"
    return (
        f"### {known.id}\n\n"
        f"{known.kind} in {known.version}, {known.contract}, law `{known.law}`\n\n"
        f"{known.reason.strip()}\n\n"
        f"    kvlockstep replay {trace}"
    )
