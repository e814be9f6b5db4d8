"""`report`: a finding, a campaign or a score as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from kvlockstep.commands.options import config_option, example, options
from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace
from kvlockstep.models.core.op import Unplayable
from kvlockstep.runs.config import load_config
from kvlockstep.runs.play_trace import play_trace
from kvlockstep.show.campaign_page import campaign_of, campaign_page, campaign_with, read_campaign
from kvlockstep.show.console import progress_bar, stdout
from kvlockstep.show.finding_page import finding_page
from kvlockstep.show.render import json_document
from kvlockstep.show.score_page import checked_score, score_page
from kvlockstep.show.script import script_of
from kvlockstep.show.svg import finding_svg
from kvlockstep.targets import Target
from kvlockstep.targets.trusting import target_of, trust_option

TargetOf = Callable[[Trace, Path], Target]
# What an output is, by the end of its name.
SUFFIXES = {".html": "a page", ".svg": "a picture of a trace", ".py": "a script of a trace"}


@click.command(
    "report",
    epilog=example("kvlockstep report .kvlockstep/failures/TRACE.jsonl -o finding.html"),
)
@click.argument("source", type=click.Path(path_type=Path), metavar="TRACE|DIR|SCORE")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="File to write.",
)
@click.option("--target", metavar="TARGET", help="TRACE: play it on this target instead of the one it names.")
@options(trust_option, config_option)
def report_command(source: Path, output: Path, target: str | None, trust: bool, config: Path | None) -> None:
    """Make one self-contained HTML page of a finding, a campaign or a score.

    TRACE is a file that check or fuzz wrote, DIR the directory it was written to, SCORE the output of `score --json`;
    the output of check, explore and fuzz with --json makes a page as well. With an output that ends in .py a TRACE
    becomes a Python script, with one that ends in .svg a picture of its failure page.

    The page of a TRACE shows the target that the trace names, so that target is imported and called. A target that is
    neither part of kvlockstep nor registered nor configured needs --target or --trust.
    """
    if output.suffix not in SUFFIXES:
        endings = ", ".join(f"{suffix} ({what})" for suffix, what in SUFFIXES.items())
        raise UsageError(f"-o {output}: give a name that ends in {endings}")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no directory {output.parent}")
    with progress_bar() as progress:
        progress.add_task(f"reading {source}")
        text, what = _made(source, output, partial(_target_of, target, config, trust), target)
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another with -o") from error
    stdout().print(f"{output}: {what}, {len(text.encode()) / 1000:,.0f} kB", markup=False)


def _target_of(spec: str | None, config: Path | None, trust: bool, trace: Trace, source: Path) -> Target:
    return target_of(trace, source, spec, load_config(config).targets.get(trace.contract, ()), trust)


def _made(source: Path, output: Path, target: TargetOf, spec: str | None) -> tuple[str, str]:
    source = campaign_with(source)
    document = None if source.is_dir() else json_document(source)
    if document is None and not source.is_dir():
        return _trace_page(source, output, target, spec)
    if output.suffix in (".py", ".svg"):
        raise UsageError(f"{source} is no trace; an output that ends in .py or .svg is for traces")
    if source.is_dir():
        page = read_campaign(source)
        return campaign_page(page, partial(_timeline, target)), page.what
    assert document is not None
    if "faults" in document:
        if spec is not None:
            raise UsageError(f"{source} is a score; --target is for traces")
        return score_page(checked_score(source, document)), "a score"
    if "runs" in document:
        page = campaign_of(source, document)
        return campaign_page(page, partial(_timeline, target)), page.what
    raise UsageError(f"{source}: neither a score nor the results of a run: it has no 'faults' and no 'runs'")


def _timeline(target_of_trace: TargetOf, trace: Trace, path: Path) -> str:
    """The page of a campaign's finding; empty for a target that is not ours to import, or that is not here."""
    try:
        target = target_of_trace(trace, path)
        return finding_page(trace.but(target=target.name), target, path)
    except (UsageError, Unplayable):
        return ""


def _trace_page(source: Path, output: Path, target_of_trace: TargetOf, spec: str | None) -> tuple[str, str]:
    trace = load_trace(source)
    if output.suffix == ".svg":
        return finding_svg(trace.but(target=spec or trace.target)), f"a picture of {len(trace.ops)} steps"
    if output.suffix == ".py":
        return script_of(trace.but(target=spec or trace.target)), f"a script of {len(trace.ops)} steps"
    target = target_of_trace(trace, source)
    try:
        page = finding_page(trace.but(target=target.name), target, source)
    except Unplayable:
        play_trace(target, trace, profile_of("quick"), source)  # says in which line it is
        raise
    return page, f"a finding of {len(trace.ops)} steps"
