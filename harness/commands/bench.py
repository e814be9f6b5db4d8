"""`bench`: speed, as ratios inside one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kvlockstep.commands.options import engine_path_option, example, json_option, print_json
from kvlockstep.core.errors import UsageError, known_names
from kvlockstep.show.console import announce_timing, stderr, stdout
from kvlockstep.targets.extras import ExtraMissing
from kvlockstep.targets.registry import check_contract


@click.command("bench", epilog=example("kvlockstep bench drivers"))
@click.argument("what", nargs=-1, metavar="[BENCHMARK]...")
@click.option(
    "--contract",
    "contracts",
    multiple=True,
    metavar="CONTRACT",
    help="Contracts of the benchmarks of guided episodes and of hard faults. Repeatable.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Their steps per run, at most (default 10,000).")
@click.option(
    "--seeds", type=click.IntRange(min=1), metavar="N", help="Their runs per fault (default 3, and 10 for hard faults)."
)
@engine_path_option
@json_option
def bench_command(
    what: Sequence[str], contracts: Sequence[str], steps: int | None, seeds: int | None, as_json: bool
) -> None:
    """Measure speed: drivers against each other, implementations against floors and peers of the same run.

    A BENCHMARK is drivers, faults, block_pool, radix_cache, kv_store, kv_tier, kv_index, record, transfers or groups;
    default: all but faults.

    Peers are vLLM and SGLang, where they are installed or lie under --engine-path.

    `faults` compares ways to play random episodes by the CPU time until they find hard faults. It takes minutes.

    Compare the ratios; absolute numbers depend on your machine.
    """
    from kvlockstep.bench import detection  # noqa: PLC0415
    from kvlockstep.bench.drivers import BENCHES, bench_drivers, print_drivers, print_speeds  # noqa: PLC0415
    from kvlockstep.bench.guided import CONTRACTS, SEEDS, STEPS, bench_guided, print_guided  # noqa: PLC0415

    known = "drivers", "faults", *BENCHES
    if unknown := [name for name in what if name not in known]:
        raise UsageError(f"unknown bench {unknown[0]!r}{known_names(unknown[0], known)}")
    for contract in contracts:
        check_contract(contract)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in what or ("drivers", *BENCHES):
        if name == "drivers":
            announce_timing("drivers")
            drivers = bench_drivers()
            results[name] = [vars(row) for row in drivers]
            if not as_json:
                print_drivers(stdout(), drivers)
            announce_timing("guided episodes")
            guided = list(bench_guided(contracts or CONTRACTS, steps or STEPS, seeds or SEEDS))
            results["guided"] = [row.to_json() for row in guided]
            if not as_json:
                print_guided(stdout(), guided)
        elif name == "faults":
            announce_timing("hard faults")
            rows = list(
                detection.bench_detection(
                    contracts or detection.CONTRACTS, steps or detection.STEPS, seeds or detection.SEEDS
                )
            )
            results[name] = [row.to_json() for row in rows]
            if not as_json:
                detection.print_detection(stdout(), rows)
        else:
            announce_timing(name)
            try:
                speeds = BENCHES[name]()
            except ExtraMissing as missing:
                if what:
                    raise
                stderr().print(f"skipped {name}: {missing}", markup=False)
                continue
            results[name] = [{**vars(row), "ratio": row.ratio} for row in speeds]
            if not as_json:
                print_speeds(stdout(), name, speeds)
    if as_json:
        print_json(results)
