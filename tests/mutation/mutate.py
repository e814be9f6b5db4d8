"""Mutation testing of reference/, properties/ and impl/ with cosmic-ray: `make mutation`.

Every mutant is one changed operator, constant or branch in a scratch copy of the tree. What kills it: a check of its
contract at profile quick, or the contract's tests, or, for a law, a fault that is no longer caught. Survivors must
stand in survivors.toml with a reason; the exit code is 1 if one does not.

    python tests/mutation/mutate.py [--sample N] [--seed N] [--jobs N] [FILE ...]
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
FOLDERS = ("reference", "properties", "impl")
# Of `int | None` in an annotation, which is never evaluated; cosmic-ray cannot tell it from a bitwise or.
ANNOTATIONS = "ReplaceBinaryOperator_BitOr_"
# Files whose name does not begin with their contract's.
CONTRACT_OF = {
    "block_keys": "block_pool",
    "block_manager": "kv_manager",
    "free_queue": "block_pool",
    "kv_memory": "kv_manager",
    "kv_sizing": "kv_manager",
    "kv_tensors": "kv_manager",
    "page_table": "kv_manager",
    "paged_contract": "paged_cache",
    "paged_manager": "kv_manager",
    "paged_pool": "paged_cache",
    "paged_queues": "paged_cache",
    "pool_manager": "kv_manager",
    "radix_contract": "radix_cache",
    "radix_manager": "kv_manager",
    "radix_tree": "radix_cache",
    "slot_manager": "kv_manager",
    "store_memory": "kv_store",
}
CONTRACTS = (
    "slot_pool",
    "slot_prefix_cache",
    "block_stack",
    "radix_cache",
    "block_pool",
    "paged_cache",
    "kv_store",
    "kv_manager",
)
# Tests beside those of the contract, by the file that they are of.
TESTS_OF = {"kv_manager": "test_kv_managers.py", "page_table": "test_radix_manager.py"}


@dataclass(frozen=True)
class Survivor:
    """A mutant that nothing noticed: the changed line as it was, and the operator that changed it."""

    file: str
    line: str
    operator: str
    number: int


@dataclass
class Result:
    file: str
    killed: int
    survivors: list[Survivor]


def contract_of(file: str) -> str | None:
    """The contract that a file serves, or None for one that serves none or all."""
    stem = Path(file).stem
    named = next((c for c in sorted(CONTRACTS, key=len, reverse=True) if stem.startswith(c)), None)
    return CONTRACT_OF.get(stem, named)


def files() -> list[str]:
    """Every file that is mutated, relative to the root."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    return [str(path.relative_to(ROOT)) for path in found if contract_of(path.name)]


def test_command(file: str) -> str:
    """What kills a mutant of the file, run in the scratch copy."""
    contract, stem = contract_of(file), Path(file).stem
    pytest = f"{sys.executable} -m pytest -x -q -n0 -p no:cacheprovider"
    if file.startswith("properties/"):
        return f"{pytest} tests/test_fault_traces.py -k {contract}-"
    named = {TESTS_OF.get(name, f"test_{name}.py") for name in (contract, stem)}
    tests = " ".join(f"tests/{name}" for name in sorted(named) if (ROOT / "tests" / name).is_file())
    check = f"{sys.executable} -m kvlockstep check {contract} --profile quick --driver random --dir failures"
    return f"sh -c '{check} && {pytest} {tests}'"


def scratch_copy(into: Path) -> Path:
    """A copy of the tree's files, and beside it the package as links into the copy, for PYTHONPATH."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    tree, package = into / "tree", into / "path" / "kvlockstep"
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    package.mkdir(parents=True)
    for name in (*FOLDERS, "models"):
        (package / name).symlink_to(tree / name)
    for path in (tree / "harness").iterdir():
        (package / path.name).symlink_to(path)
    return tree


def mutate(tree: Path, file: str, chosen: Sequence[int] | None) -> Result:
    """Runs the mutants of one file, or those with the `chosen` numbers, one after the other."""
    config, session = tree.parent / "config.toml", tree.parent / "session.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        f'[cosmic-ray]\nmodule-path = "{file}"\ntimeout = 120.0\nexcluded-modules = []\n'
        f'test-command = """{test_command(file)}"""\n\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    cosmic_ray = [str(Path(sys.executable).with_name("cosmic-ray"))]
    environment = {**os.environ, "PYTHONPATH": str(tree.parent / "path"), "PYTHONDONTWRITEBYTECODE": "1"}
    unchanged = subprocess.run(
        shlex.split(test_command(file)), cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    if unchanged.returncode:
        raise click.ClickException(f"{file}: its tests fail without a mutation:\n{unchanged.stdout[-2000:]}")
    subprocess.run([*cosmic_ray, "init", config, session], cwd=tree, env=environment, check=True)
    with use_db(session) as database:
        _skip(database, chosen)
    subprocess.run([*cosmic_ray, "exec", config, session], cwd=tree, env=environment, check=True)
    with use_db(session) as database:
        return _result(database, file, tree)


def _wanted(database: WorkDB) -> list[str]:
    return [item.job_id for item in database.work_items if ANNOTATIONS not in item.mutations[0].operator_name]


def _skip(database: WorkDB, chosen: Sequence[int] | None) -> None:
    wanted = _wanted(database)
    keep = {wanted[i % len(wanted)] for i in chosen} if chosen is not None and wanted else set(wanted)
    for item in list(database.work_items):
        if item.job_id not in keep:
            database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def _result(database: WorkDB, file: str, tree: Path) -> Result:
    lines = (tree / file).read_text().splitlines()
    result = Result(file, 0, [])
    for item in database.work_items:
        outcome = dict(database.results).get(item.job_id)
        if outcome is None or outcome.worker_outcome == WorkerOutcome.SKIPPED:
            continue
        if outcome.test_outcome != TestOutcome.SURVIVED:
            result.killed += 1
            continue
        mutation = item.mutations[0]
        number = mutation.start_pos[0]
        result.survivors.append(
            Survivor(file, lines[number - 1].strip(), mutation.operator_name.removeprefix("core/"), number)
        )
    return result


def accepted() -> dict[tuple[str, str, str], str]:
    """Survivors that are known, by file, line and operator: to the reason why nothing needs to kill them."""
    if not SURVIVORS.is_file():
        return {}
    rows = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(row["file"], row["line"], operator): row["reason"] for row in rows for operator in row["operators"]}


def plan(chosen: Sequence[str], sample: int, seed: int) -> Iterator[tuple[str, list[int] | None]]:
    """Which mutants of which files: all, or `sample` of each file drawn with the seed."""
    for file in chosen:
        draw = random.Random(f"{seed} {file}")
        yield file, [draw.randrange(10**9) for _ in range(sample)] if sample else None


@click.command()
@click.argument("chosen", nargs=-1, metavar="[FILE]...")
@click.option("--sample", type=click.IntRange(min=0), default=0, help="Mutants of each file; 0 (the default) is all.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sample.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
def main(chosen: Sequence[str], sample: int, seed: int, jobs: int) -> None:
    """Mutates FILES, or every file of reference/, properties/ and impl/ that serves one contract."""
    if unknown := [file for file in chosen if file not in files()]:
        raise click.BadParameter(f"{unknown[0]} is not one of {', '.join(files())}")
    known = accepted()
    console = Console(highlight=False, soft_wrap=True)
    work = list(plan(chosen or files(), sample, seed))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        trees = [scratch_copy(Path(scratch, str(i))) for i in range(jobs)]

        def share(i: int) -> list[Result]:
            done = []
            for file, numbers in work[i::jobs]:
                done.append(mutate(trees[i], file, numbers))
                console.print(f"{file}: {done[-1].killed} killed, {len(done[-1].survivors)} survived")
            return done

        results = [result for part in pool.map(share, range(jobs)) for result in part]
    new = [s for result in results for s in result.survivors if (s.file, s.line, s.operator) not in known]
    console.print(_table(results, known))
    for survivor in new:
        console.print(f"{survivor.file}:{survivor.number}: {survivor.operator} survived: {survivor.line}", markup=False)
    killed, survived = sum(r.killed for r in results), sum(len(r.survivors) for r in results)
    listed = survived - len(new)
    console.print(f"{killed} of {killed + survived} mutants killed; {listed} survive for a reason, {len(new)} for none")
    sys.exit(1 if new else 0)


def _table(results: list[Result], known: dict[tuple[str, str, str], str]) -> Table:
    table = Table("file", box=None, pad_edge=False)
    for column in ("mutants", "killed", "listed", "unlisted"):
        table.add_column(column, justify="right")
    for result in sorted(results, key=lambda result: result.file):
        listed = sum((s.file, s.line, s.operator) in known for s in result.survivors)
        survived = len(result.survivors)
        counts = (result.killed + survived, result.killed, listed, survived - listed)
        table.add_row(result.file, *map(str, counts))
    return table


if __name__ == "__main__":
    main()
