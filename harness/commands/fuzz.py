"""`fuzz`: random episodes for hours, as a campaign."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from kvlockstep.campaign.plan import SHARD_EPISODES
from kvlockstep.campaign.playing import shard_driver
from kvlockstep.campaign.running import GRACE_SECONDS, MakeWorkers, fuzz, local_workers
from kvlockstep.campaign.store import DirectoryStore, Store
from kvlockstep.campaign.summary import Campaign
from kvlockstep.commands.options import (
    complete_contract,
    example,
    json_option,
    one_target,
    options,
    parse_time,
    print_json,
    profile_option_for,
    show_output_option,
    target_option,
)
from kvlockstep.core.errors import UsageError
from kvlockstep.core.files import require_writable
from kvlockstep.core.profiles import profile_of
from kvlockstep.drivers import SHARD_DRIVERS
from kvlockstep.properties.law import counted
from kvlockstep.runs.config import Config
from kvlockstep.runs.results import EXIT_CODES, INTERRUPTED, VIOLATED
from kvlockstep.show.console import NowAndThen, print_campaign, progress_bar, stdout
from kvlockstep.show.findings import results_of_campaign
from kvlockstep.show.machine_formats import machine_formats, publish

F = TypeVar("F", bound=Callable[..., Any])
WORKERS = ("local", "ray")
LATE_SECONDS = 2.0
# Where the traces of a campaign on a Redis server are put on this machine.
CAMPAIGNS = Path(".kvlockstep/campaigns")


def where_option(function: F) -> F:
    """--dir and --store."""
    directory = click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Directory of the campaign. A campaign that is there is resumed.",
    )
    store = click.option(
        "--store", "url", metavar="URL", help="Keep the campaign on a Redis server: redis://HOST:PORT/DB#NAME."
    )
    return directory(store(function))


@click.command(
    "fuzz",
    epilog=example("kvlockstep fuzz kv_manager --target my_manager.py:MyManager --time 8h --dir nightly"),
)
@click.argument("contract", shell_complete=complete_contract)
@options(
    target_option,
    profile_option_for("Limits of a call and of shrinking"),
    where_option,
    json_option,
    machine_formats,
    show_output_option,
)
@click.option(
    "--time",
    "time_text",
    metavar="DURATION",
    help="Time to run, such as 90s, 10m or 8h (default 60s, or until --shards are done).",
)
@click.option("--shards", type=click.IntRange(min=1), metavar="N", help="Stop after N shards in total.")
@click.option(
    "--shard-episodes",
    type=click.IntRange(min=1),
    default=SHARD_EPISODES,
    show_default=True,
    metavar="N",
    help="Episodes per shard. Give fewer if one shard of a slow target outlasts --time.",
)
@click.option(
    "--jobs", type=int, metavar="N", help="Worker processes (default 1; with ray, one for each CPU of the cluster)."
)
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of the campaign.")
@click.option(
    "--driver", metavar="|".join(SHARD_DRIVERS), default="random", show_default=True, help="Driver of every shard."
)
@click.option(
    "--workers",
    type=click.Choice(WORKERS),
    metavar="|".join(WORKERS),
    default="local",
    show_default=True,
    help="Where the workers run.",
)
@click.option("--address", metavar="HOST:PORT", help="Address of a running Ray cluster (default: start a local one).")
def fuzz_command(
    contract: str,
    targets: Sequence[str],
    profile: str | None,
    directory: Path | None,
    url: str | None,
    as_json: bool,
    time_text: str | None,
    shards: int | None,
    shard_episodes: int,
    jobs: int | None,
    seed: int,
    driver: str,
    workers: str,
    address: str | None,
) -> None:
    """Run random episodes in worker processes until the time is up. Ctrl-C ends it early and loses nothing:
    the exit code is 1 if it has found something, else 130.

    When time is up, running shards finish, at most five minutes later. A second Ctrl-C does not wait for them. With
    --dir it is a campaign: the same command resumes it, even after a crash, and no recorded episode is played again.
    Without --dir, findings go where `check` plays them first.
    """
    target = one_target(contract, targets)
    if address is not None and workers != "ray":
        raise UsageError("--address is for --workers ray")
    seconds = parse_time(time_text) if time_text else 60.0 if shards is None else float("inf")
    with open_store(directory, url) as store, progress_bar() as progress:
        campaign = fuzz(
            target,
            profile_of(profile or "quick"),
            seconds=seconds,
            jobs=jobs,
            seed=seed,
            store=store,
            driver=shard_driver(driver).name,
            shards=shards,
            shard_episodes=shard_episodes,
            make_workers=_make_workers(workers, address),
            progress=_Shown(NowAndThen(progress), seconds),
        )
    if as_json:
        print_json(campaign_json(campaign))
    else:
        print_campaign(stdout(), campaign)
    publish(results_of_campaign(campaign))
    # An interrupted campaign has not run its time: that nothing was found says nothing, and a finding stays one.
    unfinished = campaign.interrupted and campaign.verdict != VIOLATED
    sys.exit(INTERRUPTED if unfinished else EXIT_CODES[campaign.verdict])


def campaign_json(campaign: Campaign) -> dict[str, Any]:
    """Returns the JSON of `fuzz --json`."""
    contract = campaign.target.contract
    traces = [str(path) for _, path in campaign.findings.values()]
    run = {
        "contract": contract,
        "target": campaign.target.name,
        "driver": campaign.plan.driver,
        "verdict": campaign.verdict,
        "steps": campaign.steps,
        "states": campaign.episodes,
        "seconds": round(campaign.seconds, 3),
        "laws": campaign.laws,
        "evaluated": dict(sorted(campaign.ledger.evaluated.items())),
        "reach": dict(sorted(campaign.ledger.reach.items())),
        "trace": traces[0] if traces else None,
    }
    return {
        "verdict": campaign.verdict,
        "runs": [run],
        "traces": traces,
        "failures": campaign.failures,
        "lost_workers": campaign.lost_workers,
        "shards": len(campaign.ledger.done),
        "run_steps": campaign.run_steps,
        "run_seconds": round(campaign.run_seconds, 3),
        "steps_per_second": round(campaign.rate),
    }


@contextmanager
def open_store(directory: Path | None, url: str | None) -> Iterator[Store]:
    """The store that the options name; without them a temporary one, of which only the findings stay."""
    if url is not None:
        from kvlockstep.campaign.redis_store import DEFAULT_NAME, RedisStore  # noqa: PLC0415

        name = url.partition("#")[2] or DEFAULT_NAME
        yield RedisStore(url, directory or CAMPAIGNS / name.replace("/", "_"))
    elif directory is not None:
        yield DirectoryStore(directory)
    else:
        require_writable(Path(Config.dir))
        with tempfile.TemporaryDirectory(prefix="kvlockstep-") as scratch:
            yield DirectoryStore(Path(scratch), findings=Path(Config.dir))


def _make_workers(name: str, address: str | None) -> MakeWorkers:
    if name == "local":
        return local_workers
    from kvlockstep.campaign.ray_workers import ray_workers  # noqa: PLC0415

    return partial(ray_workers, address=address)


class _Shown:
    """Reports what a campaign resumes, its progress, and what it waits for when its time is up."""

    def __init__(self, show: NowAndThen, seconds: float) -> None:
        self._show = show
        self._seconds = seconds
        self._late = self._began = self._interrupted = False

    def __call__(self, campaign: Campaign) -> None:
        if not self._began and campaign.ledger.done and not campaign.run_steps:
            done, found = counted(len(campaign.ledger.done), "shard"), counted(len(campaign.ledger.findings), "finding")
            self._show.say(f"resuming after {counted(campaign.steps, 'step')} in {done}, with {found}")
        self._began = True
        if campaign.interrupted and not self._interrupted:
            self._interrupted = True
            self._show.say("interrupted: running shards finish; press Ctrl-C again to stop now")
        self._show(
            f"{campaign.steps:,} steps, {campaign.rate:,.0f} a second, {counted(len(campaign.ledger.done), 'shard')}, "
            f"{counted(campaign.failures, 'failure')}, {counted(len(campaign.findings), 'finding')}"
        )
        if campaign.run_seconds > self._seconds + LATE_SECONDS and not self._late:
            self._late = True
            slow = "" if campaign.run_steps else "; no shard has ended yet, --shard-episodes makes them shorter"
            self._show.say(
                f"the time of {self._seconds:g} s is up; running shards finish within {GRACE_SECONDS:g} s "
                f"(press Ctrl-C twice to stop now){slow}"
            )
