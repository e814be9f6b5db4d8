"""`bench`: the drivers against each other, and the optimised implementations against their floors, in one run."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from kvlockstep.bench.block_pool import bench_block_pool
from kvlockstep.bench.groups import bench_judges, bench_managers
from kvlockstep.bench.kv_index import bench_kv_index
from kvlockstep.bench.kv_tier import bench_tiers
from kvlockstep.bench.record import bench_record
from kvlockstep.bench.timing import Speed
from kvlockstep.bench.transfers import bench_transfers, cpu_seconds
from kvlockstep.core.errors import UsageError
from kvlockstep.core.notes import EpisodeNotes, noting
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.drivers.run import Run
from kvlockstep.drivers.stateful import HypothesisMachines
from kvlockstep.models.core.model import Factory, Model
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import load, resolve

ROUNDS = 3
RANDOM_SECONDS = 1.0
BUDGET = Profile("bench", examples=60, steps_per_example=50, random_steps=sys.maxsize)
NOTE_ROUNDS, NOTED_STEPS = 41, 700
ROWS = (("slot_pool", "reference"), ("slot_pool", "pool"), ("kv_manager", "reference"), ("kv_manager", "blocks"))


@dataclass(frozen=True)
class DriverSpeed:
    """Steps per second, medians over the rounds; `ratio` is the median of the rounds' ratios.

    `notes` is what the notes of a supervised child add to a random step, as a share of its CPU time.
    """

    contract: str
    target: str
    random: float
    hypothesis: float
    ratio: float
    notes: float


def bench_drivers() -> list[DriverSpeed]:
    """Runs both drivers in turn, several rounds."""
    return [_compare(contract, name) for contract, name in ROWS]


def _compare(contract: str, name: str) -> DriverSpeed:
    model_type, factory = model_of(contract), resolve(contract, name).factory
    walks, machines = [], []
    for seed in range(ROUNDS):
        with Watchdog(30.0).watching() as watchdog:
            run = Run(model_type, factory, BUDGET, watchdog, seed)
            walk = RandomWalk(RANDOM_SECONDS).run(run)
            machine = HypothesisMachines().run(run)
        walks.append(walk.steps / walk.seconds)
        machines.append(machine.steps / machine.seconds)
    ratio = statistics.median(w / m for w, m in zip(walks, machines, strict=True))
    notes = _cost_of_notes(model_type, factory)
    return DriverSpeed(contract, name, statistics.median(walks), statistics.median(machines), ratio, notes)


def _cost_of_notes(model_type: type[Model[Any]], factory: Factory) -> float:
    """Returns the share of time that notes add to the same steps, run with and without: the median of the rounds."""
    noted = noting(model_type, EpisodeNotes())
    shares = []
    for seed in range(NOTE_ROUNDS):
        bare, with_notes = (cpu_seconds(model, factory, seed, NOTED_STEPS) for model in (model_type, noted))
        shares.append(with_notes / bare - 1)
    return statistics.median(shares)


def print_drivers(console: Console, rows: list[DriverSpeed]) -> None:
    """The table of `bench drivers`."""
    table = Table(
        box=None, title=f"steps per second with all laws on, medians of {ROUNDS} rounds", title_justify="left"
    )
    for heading in ("contract", "target", "random", "hypothesis", "ratio", "notes"):
        table.add_column(heading, justify="left" if heading in ("contract", "target") else "right")
    for row in rows:
        speeds = f"{row.random:,.0f}", f"{row.hypothesis:,.0f}", f"{row.ratio:.0f}x", f"{row.notes:+.1%}"
        table.add_row(row.contract, row.target, *speeds)
    console.print(table)


def _block_pool() -> list[Speed]:
    return bench_block_pool(
        load("kvlockstep.impl.block_pool.free_queue:FreeQueue"), resolve("block_pool", "pool").factory
    )


def _radix_cache() -> list[Speed]:
    factory = resolve("radix_cache", "radix").factory
    from kvlockstep.bench.radix_cache import bench_radix  # noqa: PLC0415  numpy is an extra

    return bench_radix(factory)


def _kv_store() -> list[Speed]:
    factory = resolve("kv_store", "tensors").factory
    from kvlockstep.bench.kv_store import bench_prefix_copy  # noqa: PLC0415  torch is an extra

    return bench_prefix_copy(factory)


def _record() -> list[Speed]:
    """On our own manager, and on vLLM's if it is here."""
    targets = {"blocks": resolve("kv_manager", "blocks").factory}
    with contextlib.suppress(UsageError):
        targets["vllm"] = resolve("kv_manager", "vllm").factory
    return bench_record(targets)


def _kv_tier() -> list[Speed]:
    """Our tiers, beside the CPU tiers of vLLM and LMCache where they are here."""
    tiers = {name: resolve("kv_tier", name).factory for name in ("lru", "arc")}
    peers: dict[str, dict[str, Any]] = {name: {} for name in tiers}
    for name, peer, target in (
        ("lru", "vLLM", "vllm-cpu"),
        ("lru", "LMCache", "lmcache-cpu"),
        ("arc", "vLLM", "vllm-cpu-arc"),
    ):
        with contextlib.suppress(UsageError):
            peers[name][peer] = resolve("kv_tier", target).factory
    return bench_tiers(tiers, peers)


def _kv_index() -> list[Speed]:
    """Our index, and Dynamo's if it is here."""
    dynamo = None
    with contextlib.suppress(UsageError):
        dynamo = resolve("kv_index", "dynamo").factory
    return bench_kv_index(resolve("kv_index", "chain").factory, dynamo)


def _transfers() -> list[Speed]:
    """Our schedulers with one tier, and with one behind it."""
    tiered = {name: resolve("kv_scheduler", name).factory for name in ("tiered", "fetching")}
    return bench_transfers(resolve("kv_scheduler", "reference").factory, tiered)


def _groups() -> list[Speed]:
    """The references with groups of both contracts, and our manager with groups."""
    grouped = load("kvlockstep.impl.kv_manager.grouped.manager:GroupedBlockManager")
    return [*bench_judges(), *bench_managers(resolve("kv_manager", "blocks").factory, grouped)]


BENCHES: dict[str, Callable[[], list[Speed]]] = {
    "block_pool": _block_pool,
    "radix_cache": _radix_cache,
    "kv_store": _kv_store,
    "kv_tier": _kv_tier,
    "record": _record,
    "kv_index": _kv_index,
    "transfers": _transfers,
    "groups": _groups,
}


def print_speeds(console: Console, name: str, rows: list[Speed]) -> None:
    """Ours, the floor, their ratio, the goal for it or, without a floor, for the figure; peers; the longest call."""
    table = Table(box=None, title=name, title_justify="left")
    for heading in ("row", "unit", "ours", "floor", "ratio", "goal", "peers", "ours to best", "longest call, us"):
        table.add_column(heading, justify="left" if heading in ("row", "unit", "peers") else "right")
    for row in rows:
        sign = ">= " if row.more_is_better else "<= "
        goal = f"{sign}{row.goal:,.4g}{'x' if row.floor and not row.more_is_better else ''}" if row.goal else ""
        floor, ratio = (f"{row.floor:,.3g}", f"{row.ratio:.2f}x") if row.floor else ("", "")
        peers = ", ".join(f"{peer} {figure:,.4g}" for peer, figure in row.peers.items())
        beside = f"{row.beside_peers:.2f}x" if row.peers else ""
        worst = f"{row.worst:,.3g}" if row.worst else ""
        table.add_row(row.row, row.unit, f"{row.ours:,.4g}", floor, ratio, goal, peers, beside, worst)
    console.print(table)
