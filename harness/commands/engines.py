"""`engines`: every engine that can be found, checked, as one table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.table import Table

from kvlockstep.commands.options import (
    dir_option,
    engine_path_option,
    example,
    jobs_option_for,
    json_option,
    options,
    print_json,
    profile_option,
    seed_option,
)
from kvlockstep.core.errors import UsageError
from kvlockstep.core.markdown import table_head, table_row
from kvlockstep.core.profiles import Profile, profile_of
from kvlockstep.core.trace import load_trace
from kvlockstep.runs.check import FAILURES, check_targets
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.runs.progress import Progress
from kvlockstep.runs.results import ERROR, EXIT_CODES, TargetResult, worst
from kvlockstep.show.console import NowAndThen, progress_bar, stdout, traits_text
from kvlockstep.targets import Target
from kvlockstep.targets.registry import ENGINE_TARGETS, EngineMissing, check_contract, known_divergences, resolve

SKIPPED, KNOWN = "skipped", "known"
MISUSE = "misuse"
SLOWER = 10
HEADINGS = ("target", "contract", "engine", "version", "verdict", "law", "steps", "traits")
INTRODUCTION = """# Engines under the contracts

Written by `kvlockstep engines --profile {profile} -o FILE`, which checks every engine that it finds. A missing engine
is listed with the reason. The command also replays the known divergences; [divergences.md](divergences.md) has their
reasons.
"""


@dataclass(frozen=True)
class EngineRow:
    """One engine under one contract; `reason` says why it was skipped, or what diverged."""

    target: str
    contract: str
    engine: str
    version: str
    verdict: str
    steps: int
    traits: str
    law: str = ""
    trace: str = ""
    reason: str = ""


def check_engines(
    profile: Profile,
    seed: int,
    directory: Path,
    progress: Callable[[str], None] = lambda _text: None,
    contracts: Collection[str] = (),
    jobs: int = 1,
) -> Iterator[EngineRow]:
    """Checks each engine of the registry under each of its contracts, or only under `contracts`, `jobs` at a time.

    A missing one is a skipped row; one that is there and cannot be loaded is an error. Raises WorkerLost.
    """
    wanted = [contract for contract in ENGINE_TARGETS if not contracts or contract in contracts]
    found = [_found(contract, name) for contract in wanted for name in ENGINE_TARGETS[contract]]

    def budget_of(target: Target) -> Profile:
        return _interpreted(profile) if getattr(target.factory, "interpreted", False) else profile

    def tell(message: Progress) -> None:
        progress(f"{message.contract} on {message.target}")

    here = [one for one in found if isinstance(one, Target)]
    with check_targets(here, budget_of, seed=seed, directory=directory, emit=tell, jobs=jobs) as results:
        for one in found:
            yield _row(next(results)) if isinstance(one, Target) else one


def _found(contract: str, name: str) -> Target | EngineRow:
    """The target, or the row of one that cannot be checked."""
    try:
        return resolve(contract, name)
    except UsageError as error:
        missing = isinstance(error.__cause__, EngineMissing)
        return EngineRow(name, contract, "", "", SKIPPED if missing else ERROR, 0, "", reason=str(error))


def _interpreted(profile: Profile) -> Profile:
    """A tenth of the budget, for kernels that Triton's interpreter runs: it takes a hundred times as long as a card."""
    return replace(
        profile,
        explore_steps=profile.explore_steps // SLOWER,
        examples=max(1, profile.examples // SLOWER),
        random_steps=profile.random_steps // SLOWER,
        shrink_steps=profile.shrink_steps // SLOWER,
        step_seconds=60.0,
    )


def _row(report: TargetResult) -> EngineRow:
    """Marks a violation as KNOWN if a known divergence of the target names its law; then nothing fails."""
    facts, failed = report.facts, next(iter(report.failures), None)
    law = failed.failure.law if failed is not None and failed.failure is not None else ""
    known = known_divergences() if law else []
    same = [d.id for d in known if (d.contract, d.target, d.law) == (report.contract, report.target, law)]
    missed = "; ".join(report.gaps)
    return EngineRow(
        report.target,
        report.contract,
        str(facts.get("engine", "")),
        str(facts.get("version", "")),
        KNOWN if same else report.verdict,
        sum(run.steps for run in report.runs),
        traits_text(facts["traits"]) if "traits" in facts else "",
        law,
        str(failed.trace or "") if failed is not None else "",
        f"known: {', '.join(same)}" if same else missed,
    )


@dataclass(frozen=True)
class KnownRow:
    """A known divergence with the result of its trace today.

    `found` is None if it cannot be played here, for want of the engine or of a card.
    """

    id: str
    kind: str
    target: str
    version: str
    law: str
    found: str | None
    reason: str

    @property
    def status(self) -> str:
        if self.found is None:
            return "not played here"
        return "still there" if self.found == self.law else f"now {self.found}" if self.found else "no longer occurs"


def replay_known(profile: Profile, misuse: bool = False, contracts: Collection[str] = ()) -> Iterator[KnownRow]:
    """Replays the trace of each known divergence on its engine, or only those of `contracts`.

    With `misuse` also calls that no scheduler makes.
    """
    for known in known_divergences():
        if (known.kind == MISUSE and not misuse) or (contracts and known.contract not in contracts):
            continue
        found: str | None = None
        trace = load_trace(known.trace, known.contract)
        with contextlib.suppress(UsageError):
            again = replay_trace(resolve(known.contract, known.target), trace, profile)
            found = again.law if again is not None else ""
        yield KnownRow(known.id, known.kind, known.target, known.version, known.law, found, known.reason.strip())


def markdown(rows: list[EngineRow], known: list[KnownRow], profile: str) -> str:
    """The tables as a page for docs/."""
    lines = [INTRODUCTION.format(profile=profile)]
    lines += table_head(*HEADINGS)
    for row in rows:
        steps = f"{row.steps:,}" if row.steps else ""
        lines.append(
            table_row(row.target, row.contract, row.engine, row.version, row.verdict, row.law, steps, row.traits)
        )
    notes = [f"- {row.contract} on {row.target}: {row.reason}" for row in rows if row.reason]
    lines += [
        "",
        *notes,
        "",
        "## Known divergences",
        "",
        *table_head("divergence", "kind", "law", "in", "today"),
    ]
    for one in known:
        link = f"[{one.id}](divergences.md#{one.id})"
        lines.append(table_row(link, one.kind, one.law, one.version, one.status))
    return "\n".join(lines).rstrip() + "\n"


@click.command("engines", epilog=example("kvlockstep engines --engine-path ~/src/vllm"))
@options(profile_option, seed_option, dir_option, json_option, engine_path_option)
@click.option(
    "--contract", "contracts", multiple=True, metavar="CONTRACT", help="Check only this contract. Repeatable."
)
@options(jobs_option_for("Check N engines at the same time", 1))
@click.option(
    "-o", "output", type=click.Path(dir_okay=False), metavar="FILE", help="Write the table to FILE as Markdown."
)
@click.option(
    "--misuse", is_flag=True, help="Also try call sequences that an engine accepts but its own scheduler never makes."
)
def engines_command(
    profile: str | None,
    seed: int | None,
    directory: str | None,
    as_json: bool,
    contracts: Sequence[str],
    jobs: int,
    output: str | None,
    misuse: bool,
) -> None:
    """Check every engine that is installed or lies under --engine-path.

    The others are listed with the reason and how to get them.
    """
    budget = profile_of(profile or "quick")
    only = [check_contract(name) for name in contracts]
    with progress_bar() as bar:
        rows = list(check_engines(budget, seed or 0, Path(directory or FAILURES), NowAndThen(bar), only, jobs))
    known = list(replay_known(budget, misuse, only))
    if output:
        try:
            Path(output).write_text(markdown(rows, known, budget.name))
        except OSError as error:
            raise UsageError(f"cannot write -o {output}: {error.strerror}") from error
    if as_json:
        divergences = [{**asdict(row), "status": row.status} for row in known]
        print_json({"engines": [asdict(row) for row in rows], "known": divergences})
    else:
        console = stdout()
        table = Table(*HEADINGS[:-1], box=None, pad_edge=False)
        for row in rows:
            steps = f"{row.steps:,}"
            table.add_row(row.target, row.contract, row.engine, row.version, row.verdict.upper(), row.law, steps)
        console.print(table)
        for row in rows:
            if row.reason:
                console.print(f"{row.contract} on {row.target}: {row.reason}", markup=False)
        for divergence in known:
            console.print(
                f"known {divergence.kind} {divergence.id} on {divergence.target}: {divergence.status}", markup=False
            )
    checked = [row.verdict for row in rows if row.verdict not in (SKIPPED, KNOWN)]
    sys.exit(EXIT_CODES[worst(checked)])
