"""The terminal consumer of events and results: plain text, no colour where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvlockstep.campaign.summary import Campaign, yardstick
from kvlockstep.core.failure_page import failure_page
from kvlockstep.models.registry import model_of
from kvlockstep.properties.law import counted
from kvlockstep.reference.traits import traits_of
from kvlockstep.runs.progress import Progress as DriverProgress
from kvlockstep.runs.results import INCONCLUSIVE, CheckResult, TargetResult
from kvlockstep.targets.registry import engine_of

PIPE_WIDTH = 120
# Narrower terminals show fewer columns.
WIDE = 70
# Skipped targets up to this number are told one by one.
FEW = 2
# How often a run without a terminal, in a log, says how far it is.
EVERY_SECONDS = 10.0


class _Results(Console):
    def on_broken_pipe(self) -> None:
        """Leaves the exit code to the command line; rich would end the process with 1, which says violated."""
        raise  # noqa: PLE0704


def stdout() -> Console:
    """For results."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return _Results(highlight=False, soft_wrap=True, width=width)


def stderr() -> Console:
    """For progress and complaints."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress_bar(total: bool = False) -> Progress:
    """A progress line on stderr that goes when it is done; with a bar where the total is known."""
    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    bar = [BarColumn(), TextColumn("{task.percentage:>3.0f}%")] if total else []
    console = Console(stderr=True)
    return Progress(
        *columns, *bar, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    )


def announce_timing(name: str) -> None:
    """Prints on a terminal what is being timed, without a thread that would disturb it."""
    if (console := stderr()).is_terminal:
        console.print(f"timing {name}")


class NowAndThen:
    """Shows how far a run is: on a terminal at once, elsewhere with a line on stderr every `every` seconds."""

    def __init__(self, progress: Progress, every: float | None = None) -> None:
        self._progress = progress
        self._every = EVERY_SECONDS if every is None else every
        self._task = progress.add_task("starting")
        self._said = time.monotonic()

    def __call__(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text))
        if self._progress.disable and time.monotonic() - self._said >= self._every:
            self.say(text)

    def say(self, text: str) -> None:
        """Says it now, and leaves it there."""
        self._said = time.monotonic()
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class CheckProgress:
    """Shows which driver is running, and keeps notes out of the way of results."""

    def __init__(self, progress: Progress) -> None:
        self._show = NowAndThen(progress)

    def __call__(self, message: DriverProgress) -> None:
        text = f"{message.contract} on {message.target}: {message.driver}"
        if message.kind == "progress":
            text += f", {message.steps:,} steps"
        elif message.kind == "shrink":
            text += f", shrinking {counted(message.steps, 'operation')}"
        self._show(text)


def print_target(console: Console, report: TargetResult, label_width: int = 0) -> None:
    """One line for a target that holds; below it why the check is inconclusive, or the failure page.

    `label_width` pads the name, so that the columns of several targets stand below each other. A narrow terminal shows
    the name and the verdict only.
    """
    label = f"{report.contract} on {report.target}"
    columns = [f"{label:<{label_width}}"]
    if console.width >= WIDE:
        columns += [f"{sum(run.steps for run in report.runs):>9,} steps", f"{goals_text(report):>15}"]
    console.print(escape("  ".join(columns)) + f"  {_coloured(report.verdict)}{escape(_engine(report.facts))}")
    for text in report.notes:
        console.print(f"  {text}", markup=False)
    if report.verdict == INCONCLUSIVE:
        for gap in report.gaps:
            console.print(f"  [yellow]{escape(gap)}[/yellow]")
    _print_failures(console, report)


def print_target_in_full(console: Console, report: TargetResult) -> None:
    """Header, traits, laws, one row per driver, goals, and the failure page if there is one."""
    console.print(
        f"[bold]{report.contract}[/bold] on [bold]{escape(report.target)}[/bold]{escape(_engine(report.facts))}"
    )
    if traits := report.facts.get("traits"):
        console.print(f"  traits: {traits_text(traits)}")
    for law, reason in report.not_checked.items():
        console.print(f"  not checked: {law} ({reason})")
    for trait, goals in report.not_declared.items():
        console.print(f"  not tried: {', '.join(goals)} (the target declares no {trait})")
    if not report.failures:
        console.print(f"  laws: {laws_text(report)}")
    for note in report.notes:
        console.print(f"  {note}", markup=False)
    console.print(_drivers_table(report, console.width))
    reached = report.reached
    if reached and not report.failures:
        goals = [g.id for g in model_of(report.contract).goals if reached[g.id]]
        console.print("  goals met: " + ", ".join(f"{goal} {reached[goal]:,}" for goal in goals))
    for gap in report.gaps if report.verdict == INCONCLUSIVE else ():
        console.print(f"  [yellow]{escape(gap)}[/yellow]")
    _print_failures(console, report)
    console.print(f"  {_coloured(report.verdict)}")
    console.print()


def _drivers_table(report: TargetResult, width: int) -> Table:
    """A row per driver; a narrow terminal shows drivers, steps and verdicts only."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    numbers = ("steps", "covered", "seconds")
    narrow = width < WIDE
    for heading in ("  driver", "steps", "verdict") if narrow else ("  driver", *numbers, "verdict", "note"):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for run in report.runs:
        # Only exploration keeps the states that it has seen; the others count their episodes, a replay nothing.
        covered = counted(run.states, "state" if run.driver == "explore" else "episode") if run.states else ""
        if narrow:
            table.add_row(f"  {run.driver}", f"{run.steps:,}", run.verdict)
        else:
            seconds = f"{run.seconds:.1f}"
            table.add_row(f"  {run.driver}", f"{run.steps:,}", covered, seconds, run.verdict, escape(run.note))
    return table


def _print_failures(console: Console, report: TargetResult) -> None:
    for run in report.failures:
        if run.failure is not None:
            console.print()
            console.print(failure_page(run.failure, run.trace), markup=False)
            console.print()


def goals_text(report: TargetResult) -> str:
    """Says how many of the goals that the target can meet were met."""
    model_type = model_of(report.contract)
    reached = sum(bool(report.reached[goal.id]) for goal in model_type.goals)
    return f"{reached} of {counted(reached + len(report.missed), 'goal')}" if not report.failures else ""


def print_summary(console: Console, report: CheckResult, seconds: float, verbose: bool = False) -> None:
    """Prints what was skipped and not checked, and the verdict of all targets together after so many seconds.

    Many skipped targets share one line unless `verbose`, those of an engine under its name.
    """
    if verbose or len(report.skipped) <= FEW:
        for target, reason in report.skipped.items():
            console.print(f"skipped {target}: {reason}", markup=False)
    else:
        labels = [label.split(" on ", 1) for label in report.skipped]
        missing = ", ".join(dict.fromkeys(engine_of(contract, name) or name for contract, name in labels))
        console.print(f"skipped {len(labels)} targets that cannot run here (-v says why): {missing}")
    if not verbose and (text := _not_checked_text(report.targets)):
        console.print(text, markup=False)
    steps = sum(run.steps for run in report.runs)
    ran = f"{counted(len(report.targets), 'target')}, {counted(steps, 'step')} in {seconds:.1f} s"
    console.print(f"{_coloured(report.verdict)}: {ran}")


def _not_checked_text(targets: Sequence[TargetResult]) -> str:
    """One line that names the laws that were not checked and the traits that were not declared, or nothing.

    Where several contracts are checked, the traits are only counted.
    """
    laws = dict.fromkeys(law for done in targets for law in done.not_checked)
    traits = dict.fromkeys(trait for done in targets for trait in done.not_declared)
    few = len({done.contract for done in targets}) <= FEW
    named = [
        *([f"laws {', '.join(laws)}"] if laws else []),
        *([f"traits not declared: {', '.join(traits) if few else len(traits)}"] if traits else []),
    ]
    where = "" if len(targets) == 1 else " on every target"
    return f"not checked{where} (-v says why): {'; '.join(named)}" if named else ""


def print_campaign(console: Console, campaign: Campaign) -> None:
    """The summary of a campaign, its findings first."""
    for trace, path in campaign.findings.values():
        console.print(failure_page(trace, path), markup=False)
        console.print()
    for lost in campaign.lost_workers:
        console.print(f"lost {lost}", markup=False)
    for note in campaign.notes:
        console.print(note, markup=False)
    console.print(
        f"{counted(campaign.steps, 'step')} in {counted(campaign.episodes, 'episode')}, {campaign.seconds:.1f} s; "
        f"{counted(campaign.failures, 'failure')}, {counted(len(campaign.findings), 'finding')}"
        + ("; interrupted" if campaign.interrupted else "")
    )
    console.print(
        f"this run: {counted(campaign.run_steps, 'step')}, {campaign.run_seconds:.1f} s, {campaign.rate:,.0f} steps/s "
        f"on {counted(campaign.jobs, 'worker')}; at this rate {yardstick(campaign.rate)}"
    )
    for gap in campaign.gaps:
        console.print(gap)


def _engine(facts: dict[str, Any]) -> str:
    return f" ({facts['engine']} {facts.get('version', '')})" if "engine" in facts else ""


def traits_text(traits: Any) -> str:
    """The traits that differ from what an adapter of their contract has by default."""
    optional = {name: one.default for name, one in traits_of(type(traits)).items() if not one.required}
    given = asdict(traits)
    declared = {n: given[n] for n, default in optional.items() if given[n] != default}
    texts = {n: "; ".join(map(str, v)) if isinstance(v, tuple) else v for n, v in declared.items()}
    return ", ".join(n if v is True else f"{n}={v}" for n, v in texts.items()) or "none"


def laws_text(report: TargetResult) -> str:
    """Counts the laws of each verdict, and names the one that was evaluated least."""
    counts = Counter(report.laws.values())
    texts = [f"{n} {verdict.replace('_', ' ')}" for verdict, n in counts.items()]
    evaluated = report.evaluated
    held = [law for law, verdict in report.laws.items() if verdict == "held"]
    if held:
        least = min(held, key=evaluated.__getitem__)
        texts.append(f"least evaluated: {least}, {evaluated[least]:,} times")
    return ", ".join(texts)


def _coloured(verdict: str) -> str:
    colour = {"holds": "green", "violated": "red", "inconclusive": "yellow"}.get(verdict, "red")
    return f"[{colour}]{verdict.upper()}[/{colour}]"
