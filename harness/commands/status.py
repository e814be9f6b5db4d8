"""`status`: progress and findings of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvlockstep.campaign.store import finding_in
from kvlockstep.campaign.summary import status_of, yardstick
from kvlockstep.commands.fuzz import open_store
from kvlockstep.commands.options import example, json_option, print_json
from kvlockstep.core.errors import UsageError
from kvlockstep.core.trace import Trace, replay_line
from kvlockstep.runs.results import gaps
from kvlockstep.show.campaign_page import STATES, campaign_with
from kvlockstep.show.console import stdout


@click.command("status", epilog=example("kvlockstep status nightly"))
@click.argument("place", metavar="DIR|URL")
@json_option
def status_command(place: str, as_json: bool) -> None:
    """Show a campaign, running or ended: steps, findings, and goals not met yet.

    Findings do not change the exit code.
    """
    with open_store(None if "://" in place else Path(place), place if "://" in place else None) as store:
        saved = store.load()
        if saved is None:
            near = campaign_with(Path(place))
            hint = f"; it is part of the one in {near}" if near != Path(place) else ""
            raise UsageError(f"there is no campaign in {place}{hint}")
        running = store.running()
        contract = saved.plan["contract"]
        findings = [finding_in(store, name, contract) for name in sorted(saved.ledger.findings)]
    status = {**status_of(saved.plan, saved.ledger), "running": running}
    if as_json:
        print_json(status)
        return
    _print_status(stdout(), status, findings)


def _print_status(console: Console, status: dict[str, Any], findings: Sequence[tuple[Trace, Path]]) -> None:
    state = "running" if status["running"] else "not running"
    rate = status["steps_per_second"]
    console.print(
        f"{status['contract']} on {status['target']}, driver {status['driver']}, seed {status['seed']}: "
        f"{status['verdict'].upper()}, {state}",
        markup=False,
    )
    console.print(
        f"  {status['steps']:,} steps in {status['episodes']:,} episodes ({status['shards']:,} shards), "
        f"{status['seconds']:,.0f} s; lately {rate:,} steps/s: at this rate {yardstick(rate)}"
    )
    if status["unique"]:
        console.print(f"  {status['unique']:,} different {STATES}")
    console.print(f"  {status['failures']:,} failures, {len(findings)} findings, {status['unshrunk']} to be shrunk")
    for trace, path in findings:
        console.print(f"    {trace.law} in {len(trace.ops)} operations: {trace.message}", markup=False)
        console.print(f"      {replay_line(trace.target, path)}", markup=False)
    console.print(f"  corpus: {len(status['corpus'])} traces, the shortest episode for each goal met")
    for gap in gaps(status["missed"], status["not_evaluated"]):
        console.print(f"  {gap}")
    if status["lost"]:
        console.print(f"  lost workers: {status['lost']}; the last:")
        for text in status["lost_workers"]:
            console.print(f"    {text}", markup=False)
