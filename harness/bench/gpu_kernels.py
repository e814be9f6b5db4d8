"""`python -m kvlockstep.bench.gpu_kernels [FILE [NAME ...]]`: engines' kernels on this card, by their contracts.

Each target plays random episodes in a process of its own for some seconds, since a wrong address ends all that is on a
card's context. A far case has its blocks spread over more than 2^31 elements a plane, or bytes for kv_store. NAMEs are
contracts or targets.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kvlockstep.core.markdown import table_head, table_row
from kvlockstep.core.profiles import Profile
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers import Run
from kvlockstep.drivers.random_walk import RandomWalk
from kvlockstep.impl.kv_store.far_apart import FarStore
from kvlockstep.models.registry import model_of
from kvlockstep.targets.registry import ENGINE_TARGETS, EngineMissing, known_divergences, load

CONTRACTS = ("kv_write", "kv_store", "slot_mapping", "paged_alloc", "decode_graphs")
OURS = {
    "kv_write": {
        "ours": "kvlockstep.impl.kv_write.writer:on_device",
        "ours-row-scales": "kvlockstep.impl.kv_write.writer:rows_on_device",
    },
    "kv_store": {
        "ours": "kvlockstep.impl.kv_store.store:on_device",
        "ours-quantised": "kvlockstep.impl.kv_store.quantised:on_device",
    },
    "decode_graphs": {"ours": "kvlockstep.impl.decode_graphs.graphs:on_device"},
    "slot_mapping": {"ours": "kvlockstep.impl.slot_mapping:on_device"},
    "paged_alloc": {"ours": "kvlockstep.impl.paged_alloc:on_device"},
}
# Engines whose caches are torch code on the CPU.
NO_KERNELS = (".engines.transformers.",)
SECONDS, FAR_SECONDS = 60.0, 15.0
STEPS, FAR_STEPS = 400, 8
FAR_ELEMENTS = (1 << 31) + (1 << 20)
FAR_BYTES = 18 << 30
# Each takes up to a quarter of a card's memory.
FAR_WORKERS = 3
# Contract, target, factory, and whether it can be made far.
Suite = tuple[str, str, str, bool]
HEADINGS = ("contract", "kernel", "engine", "cases", "far cases", "verdict")


def suites(named: Sequence[str] = ()) -> Iterator[Suite]:
    """The suites, contract after contract; of those that are named, if any are."""
    for contract in CONTRACTS:
        for name, path in {**OURS[contract], **ENGINE_TARGETS[contract]}.items():
            if (named and not {contract, name} & {*named}) or any(engine in path for engine in NO_KERNELS):
                continue
            scaled = any(part in name for part in ("int8", "int4", "row-scales", "tiles", "turbo", "fp4", "ultra"))
            writes = contract == "kv_write" and not scaled and not name.endswith("-far")
            yield contract, name, path, writes or contract == "kv_store"


def play(contract: str, path: str, seconds: float, seed: int, far: bool) -> dict[str, Any]:
    """Plays episodes until the time is over or a law is violated."""
    try:
        factory = load(path, path)
    except Exception as error:
        missing = isinstance(error, EngineMissing) or isinstance(error.__cause__, EngineMissing)
        return {"verdict": "skipped" if missing else "error", "cases": 0, "why": str(error)}
    if far and contract == "kv_store":
        factory = partial(FarStore, make=factory, least_bytes=FAR_BYTES)
    elif far:
        factory = partial(factory, least_elements=FAR_ELEMENTS)
    cases, end = 0, time.monotonic() + seconds
    with Watchdog(120.0).watching() as watchdog:
        for number in itertools.count(seed):
            steps = FAR_STEPS if far else STEPS
            done = RandomWalk().run(
                Run(model_of(contract), factory, Profile("kernels", random_steps=steps), watchdog, number)
            )
            cases += done.steps
            if done.failure is not None:
                why = f"{done.failure.law}: {done.failure.message}"
                return {"verdict": "violated", "cases": cases, "why": why, "law": done.failure.law, "engine": ""}
            if time.monotonic() > end:
                return {"verdict": "holds", "cases": cases, "why": "", "law": ""}
    raise AssertionError("the count of seeds does not end")


def in_process(contract: str, path: str, seconds: float, seed: int, far: bool) -> dict[str, Any]:
    """Plays in a process of its own; what ends that process is a verdict too."""
    command = [sys.executable, "-m", __spec__.name, "--play", contract, path, str(seconds), str(seed), str(int(far))]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        found: dict[str, Any] = json.loads(last)
        return found
    except ValueError:
        return {"verdict": "crashed", "cases": 0, "why": (done.stderr.strip() or "no output").rpartition("\n")[2]}


def played(rows: Sequence[Suite], seconds: float, seed: int, far: bool, workers: int) -> list[dict[str, Any] | None]:
    """What came of suites that are played side by side; None for one that cannot be made far, if all are to be."""

    def one(row: Suite) -> dict[str, Any] | None:
        contract, _, path, can_be_far = row
        return in_process(contract, path, seconds, seed, far) if can_be_far or not far else None

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, rows))


def table(named: Sequence[str], seconds: float, far_seconds: float, workers: int = 14, seed: int = 1) -> Iterator[str]:
    """The table of kernels, contract by contract as they are through, and below it what was violated."""
    known = {(d.contract, d.target, d.law): d.id for d in known_divergences()}
    yield from table_head(*HEADINGS)
    notes: list[str] = []
    for _, of_contract in itertools.groupby(suites(named), key=lambda row: row[0]):
        rows = list(of_contract)
        near = played(rows, seconds, seed, False, workers)
        # Behind the near ones: each takes up to a quarter of a card's memory.
        far = played(rows, far_seconds, seed, True, FAR_WORKERS)
        for row, *found in zip(rows, near, far, strict=True):
            yield _row(row, found, known, notes)
    if notes:
        yield ""
        yield from notes


def _row(
    row: Suite, found: Sequence[dict[str, Any] | None], known: dict[tuple[str, str, str], str], notes: list[str]
) -> str:
    """The row of a suite by what was `found` near and far; `notes` gets what does not hold."""
    contract, name, path, _ = row
    verdicts, cases = [], []
    for kind, ending, one in zip(("", "far: "), ("", "-far"), found, strict=True):
        cases.append("" if one is None else f"{one['cases']:,}")
        if one is None or one["verdict"] == "holds":
            continue
        same = known.get((contract, f"{name}{ending}", one.get("law", "")))
        verdicts.append(f"{kind}known: {same}" if same else f"{kind}{one['verdict']}")
        notes.append(f"- {contract} on {name}, {kind}{one['why']}")
    engine = path.split(".")[3] if ".engines." in path else "kvlockstep"
    return table_row(contract, name, engine, *cases, "; ".join(verdicts) or "holds")


def main() -> None:
    """Plays one suite if told to, else writes the table to the file named, or prints it."""
    if sys.argv[1:2] == ["--play"]:
        contract, path, seconds, seed, far = sys.argv[2:7]
        print(json.dumps(play(contract, path, float(seconds), int(seed), bool(int(far)))))
        return
    budget = float(os.environ.get("KVLOCKSTEP_KERNEL_SECONDS", SECONDS))
    # Line by line, so that a run that is cut off leaves what was through.
    with open(sys.argv[1] if len(sys.argv) > 1 else os.devnull, "w") as file:
        for line in table(sys.argv[2:], budget, min(budget, FAR_SECONDS)):
            print(line, file=file, flush=True)
            print(line, flush=True)


if __name__ == "__main__":
    main()
