"""`replay`: saved traces again, or a request trace under the KV oracle."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kvlockstep.commands.options import (
    config_option,
    example,
    json_option,
    one_target,
    options,
    print_json,
    show_output_option,
    target_option,
)
from kvlockstep.core.errors import UsageError
from kvlockstep.core.parent import RUNNING, doing
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.requests.adapter import make_adapter
from kvlockstep.runs.config import load_config
from kvlockstep.runs.mooncake import MooncakeReader, read_mooncake
from kvlockstep.runs.replay import replay_twice, wanted_traces, worst_of
from kvlockstep.runs.request_player import has_block_tables, lists_free_blocks, play, slot_entries
from kvlockstep.runs.request_results import ReplayDivergence, Summary
from kvlockstep.runs.results import EXIT_CODES, HOLDS, VIOLATED
from kvlockstep.show.console import NowAndThen, progress_bar, stderr, stdout
from kvlockstep.show.findings import results_of_json, results_of_runs
from kvlockstep.show.machine_formats import machine_formats, publish
from kvlockstep.targets import Target
from kvlockstep.targets.trusting import trust_option

# A line of a run without a terminal.
MOONCAKE_SECONDS = 10.0
# Most adapters need 30 to 70 ns to list a slot and the judge as much to check it: a minute, or two beside other load.
MOST_SLOT_ENTRIES = 250_000_000


def replay_mooncake(
    path: Path,
    target: Target,
    *,
    blocks: int,
    block_size: int,
    limit: int | None,
    skip_bad: bool,
    console: Console,
    as_json: bool,
) -> tuple[str, dict[str, Any]]:
    """Plays a request trace on a kv_manager and prints its summary, or the violation; returns verdict and JSON."""
    reader = read_mooncake(path, skip_bad)
    lines = _count_lines(path)
    total = lines if limit is None else min(limit, lines)
    try:
        adapter = make_adapter(target.factory, blocks, block_size)
        with doing(RUNNING, target.name), progress_bar() as progress:
            show = NowAndThen(progress, MOONCAKE_SECONDS)
            if missing := _missing_for_blocks(adapter, target, read_mooncake(path, skip_bad), limit):
                show.say(missing)
            summary = play(
                islice(iter(reader), limit),
                adapter,
                progress=lambda done, steps: show(f"{target.name}: {done:,} of {total:,} requests, {steps:,} steps"),
            )
    except Divergence as divergence:
        if not as_json:
            console.print(f"kv_manager on {target.name} - VIOLATED {divergence.law} in {path}", markup=False)
            console.print(f"  {divergence.message}", markup=False)
            for detail in divergence.details:
                console.print(f"    {detail}", markup=False)
        done = divergence.summary if isinstance(divergence, ReplayDivergence) else None
        return VIOLATED, _mooncake_json(VIOLATED, target, done, reader.skipped, divergence)
    if not summary.requests:
        raise UsageError(f"{path}: no request to play ({reader.skipped} malformed lines skipped)")
    if not as_json:
        _print_summary(console, target, summary, reader.skipped, blocks)
    return HOLDS, _mooncake_json(HOLDS, target, summary, reader.skipped, None)


def _missing_for_blocks(adapter: Any, target: Target, requests: MooncakeReader, limit: int | None) -> str:
    """Names the methods missing for one stamp per block, and the cost of that; "" if none is missing.

    Raises UsageError if it costs more than MOST_SLOT_ENTRIES.
    """
    if has_block_tables(adapter):
        if lists_free_blocks(adapter):
            return ""
        return f"{target.name} has no free_blocks(): the free list is not checked, and freed blocks are not poisoned"
    entries, fitting = 0, 0
    for request in islice(iter(requests), limit):
        entries += slot_entries(request)
        fitting += entries <= MOST_SLOT_ENTRIES
    lacks = (
        f"{target.name} has no blocks(rid), its block table: slots are read one by one, about {entries:,} entries of "
        f"slots(rid) in all"
    )
    if entries > MOST_SLOT_ENTRIES:
        fewer = f", or play {fitting:,} requests with --limit" if fitting else ""
        raise UsageError(
            f"{lacks}, and more than {MOST_SLOT_ENTRIES:,} are not played; give it blocks(rid) and free_blocks(){fewer}"
        )
    return f"{lacks}; with blocks(rid) and free_blocks() it is one entry per block"


def _count_lines(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise UsageError(f"cannot read trace {path}: {error.strerror}") from error


def _print_summary(console: Console, target: Target, summary: Summary, skipped: int, blocks: int) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    counted = "counted by the manager" if summary.evictions_by == "manager" else "at least, seen from outside"
    rows: list[tuple[str, str, str]] = [
        ("requests", f"{summary.requests:,}", f"{summary.rejected:,} rejected, {skipped:,} malformed lines skipped"),
        ("prompt tokens", f"{summary.prompt_tokens:,}", f"{summary.hit_rate:.1%} of them prefix hits"),
        ("generated tokens", f"{summary.generated_tokens:,}", ""),
        ("evictions", f"{summary.evictions:,}", f"blocks of {blocks:,}, {counted}"),
        ("refusals", f"{summary.refusals:,}", f"{summary.preemptions:,} preemptions"),
        ("steps", f"{summary.steps:,}", f"{summary.operations:,} operations"),
        ("operations/s", f"{summary.operations_per_second:,.0f}", f"{summary.seconds:.1f} s"),
        ("peak memory", f"{summary.peak_memory:,.0f} MB", f"KV oracle with one stamp per {summary.granularity}"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(f"kv_manager on {target.name} - every law held")
    console.print(table)


def _mooncake_json(
    verdict: str, target: Target, summary: Summary | None, skipped: int, divergence: Divergence | None
) -> dict[str, Any]:
    played = vars(summary) if summary is not None else {}
    law = divergence.law if divergence is not None else None
    run = {
        "contract": "kv_manager",
        "target": target.name,
        "driver": "mooncake",
        "verdict": verdict,
        "steps": played.get("operations", 0),
        "states": played.get("requests", 0),
        "seconds": round(played.get("seconds", 0.0), 3),
        "laws": {law: "violated"} if law else {},
        "reach": {},
        "trace": None,
    }
    hit_rate = {"hit_rate": summary.hit_rate} if summary is not None else {}
    wrong = {"message": divergence.message, "details": list(divergence.details)} if divergence is not None else {}
    return {"verdict": verdict, "runs": [run], "summary": {**played, **hit_rate, "skipped": skipped}, **wrong}


@click.command("replay", epilog=example("kvlockstep replay .kvlockstep/failures"))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|DIR...")
@options(target_option, trust_option, json_option, config_option, machine_formats, show_output_option)
@click.option(
    "--format",
    "trace_format",
    type=click.Choice(["kvlockstep", "mooncake"]),
    metavar="kvlockstep|mooncake",
    default="kvlockstep",
    show_default=True,
    help="Format of FILE.",
)
@click.option("--skip-bad", is_flag=True, help="mooncake: skip malformed lines and count them.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="mooncake: replay only the first N requests.")
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    metavar="N",
    help="mooncake: blocks of the pool.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="N",
    help="mooncake: tokens per block.",
)
def replay_command(
    files: Sequence[Path],
    targets: Sequence[str],
    trust: bool,
    as_json: bool,
    config: Path | None,
    trace_format: str,
    skip_bad: bool,
    limit: int | None,
    blocks: int,
    block_size: int,
) -> None:
    """Replay saved traces, or a request trace in Mooncake format.

    Each trace is FIXED, HOLDS, VIOLATED, FLAKY, or NOT APPLICABLE if some of its operations cannot be played on the
    target. A DIR stands for all traces below it. The worst verdict is the exit code. A trace names its target, which
    is imported and called. A target that is neither part of kvlockstep nor registered nor configured needs --target
    or --trust.
    """
    if trace_format == "mooncake":
        if len(files) != 1:
            raise UsageError("replay --format mooncake takes one FILE")
        target = one_target("kv_manager", targets or ("blocks",))
        verdict, result = replay_mooncake(
            files[0],
            target,
            blocks=blocks,
            block_size=block_size,
            limit=limit,
            skip_bad=skip_bad,
            console=stdout(),
            as_json=as_json,
        )
        if as_json:
            print_json(result)
        publish(results_of_json(result))
        sys.exit(EXIT_CODES[verdict])
    if len(targets) > 1:
        raise UsageError("replay takes one --target")
    wanted, notes = wanted_traces(files, next(iter(targets), None), load_config(config).targets, trust)
    for note in notes:
        stderr().print(note, markup=False)
    replays = []
    for trace in wanted:
        replays.append(replay_twice(trace.target, trace.trace, trace.path))
        if not as_json and [trace.path] != list(files):
            stdout().print(replays[-1].line, markup=False)
    worst = worst_of(replays)
    if as_json:
        runs = [replay.run.to_json() for replay in replays]
        print_json({"verdict": worst.run.verdict, "word": worst.word, "runs": runs})
    elif [worst.path] == list(files):
        stdout().print(worst.page, markup=False)
        stdout().print(worst.word)
    publish(results_of_runs([replay.run for replay in replays]))
    sys.exit(EXIT_CODES[worst.run.verdict])
