"""`prove`: CrossHair on the proofs in properties/proofs.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kvlockstep.commands.options import example, json_option, parse_time, print_json
from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.properties.proofs import PROOFS
from kvlockstep.runs.results import EXIT_CODES, HOLDS, INCONCLUSIVE, VIOLATED
from kvlockstep.show.console import progress_bar, stdout

PROVED, REFUTED, NOT_EXHAUSTED = "proved", "refuted", "not exhausted"


@dataclass(frozen=True)
class Proof:
    """One verdict. `text` is the statement, or the counterexample of a refutation."""

    name: str
    verdict: str
    seconds: float
    text: str


def prove(
    seconds: float, only: tuple[str, ...] = (), proofs: tuple[Callable[..., None], ...] = PROOFS
) -> Iterator[Proof]:
    """Runs the proofs, each for at most `seconds`. Raises UsageError for an unknown name, or without CrossHair."""
    known = {proof.__name__: proof for proof in proofs}
    if unknown := [name for name in only if name not in known]:
        raise UsageError(f"unknown proof {unknown[0]!r}{known_names(unknown[0], known)}")
    for name in only or known:
        yield _prove(known[name], seconds)


def _prove(function: Callable[..., None], seconds: float) -> Proof:
    started = time.perf_counter()
    states, message = _analyze(function, seconds)
    verdict = REFUTED if message else PROVED if states == {"CONFIRMED"} else NOT_EXHAUSTED
    text = message or " ".join((function.__doc__ or "").split())
    return Proof(function.__name__, verdict, round(time.perf_counter() - started, 1), text)


def _analyze(function: Callable[..., None], seconds: float) -> tuple[set[str], str]:
    """CrossHair's message types, and the first counterexample."""
    try:
        from crosshair.core_and_libs import analyze_function, run_checkables  # noqa: PLC0415
        from crosshair.options import AnalysisKind, AnalysisOptionSet  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("prove needs CrossHair: pip install crosshair-tool") from error
    options: Any = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.asserts],
        per_condition_timeout=seconds,
        per_path_timeout=seconds,
        max_uninteresting_iterations=10**9,
        report_all=True,
    )
    messages = list(run_checkables(analyze_function(function, options)))
    states = {message.state.name for message in messages}
    failures = [message.message for message in messages if message.state.name in ("POST_FAIL", "POST_ERR", "EXEC_ERR")]
    return states, next((text for text in failures if _repeats(function, text)), "")


def _repeats(function: Callable[..., None], message: str) -> bool:
    """True if the call in CrossHair's message fails on plain values too; it models a few operations imprecisely."""
    _, _, call = message.partition("when calling ")
    try:
        eval(call.partition(" (which returns")[0], {function.__name__: function})
    except Exception:
        return True
    return False


def print_proofs(console: Console, proofs: list[Proof]) -> None:
    """Prints one line for each proof; one that was not exhausted is not called proved."""
    table = Table(box=None, pad_edge=False)
    for heading in ("proof", "verdict", "seconds", ""):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    for proof in proofs:
        table.add_row(proof.name, proof.verdict, f"{proof.seconds:.1f}", proof.text)
    console.print(table)


@click.command("prove", epilog=example("kvlockstep prove --time 60s"))
@click.argument("names", nargs=-1)
@json_option
@click.option("--time", "time_text", default="30s", show_default=True, metavar="DURATION", help="Time for each proof.")
def prove_command(names: Sequence[str], as_json: bool, time_text: str) -> None:
    """Prove the small pure functions that everything else rests on, with CrossHair. NAMES select some of the proofs.

    A proof that is not exhausted in its time makes the verdict inconclusive.
    """
    with progress_bar() as progress:
        task = progress.add_task("proving")
        proofs = []
        for proof in prove(parse_time(time_text), tuple(names)):
            proofs.append(proof)
            progress.update(task, description=f"{len(proofs)} proofs, the last: {proof.name}")
    verdicts = {proof.verdict for proof in proofs}
    verdict = VIOLATED if REFUTED in verdicts else INCONCLUSIVE if NOT_EXHAUSTED in verdicts else HOLDS
    if as_json:
        print_json({"verdict": verdict, "proofs": [vars(proof) for proof in proofs]})
    else:
        print_proofs(stdout(), proofs)
    sys.exit(EXIT_CODES[verdict])
