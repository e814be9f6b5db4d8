"""Mutation testing of reference/, properties/ and impl/ with cosmic-ray's operators: `make mutation`.

Every mutant is one changed operator, constant or branch in a copy of the tree. What kills it: a check of the targets
that rest on the file, at profile quick; for a law, a fault that is no longer caught or a variant that is
blamed; or the tests of the contract. Whatever noticed a mutant is run once on the original too, which must pass it.
Survivors must stand in survivors.toml with a reason; the exit code is 1 if one does not.

impl/engines is checked by `kvlockstep engines`, impl/faulty is wrong already, impl/variants is the reference with
small changes: none of them is mutated.

    python tests/mutation/mutate.py [--sample N] [--seed N] [--jobs N] [-o REPORT.md] [FILE ...]
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import platform
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from children import Tree, Verdict, call, copy_of, judge, tracked
from killing import Look, Plan, enter, looks, plan_of
from mutants import Mutant, mutants, sample
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
FOLDERS = ("reference", "properties", "impl")
LEFT_OUT = ("impl/engines/", "impl/faulty/", "impl/variants/", "properties/overlaps.py", "properties/why.py")
LIBRARIES = "torch numpy hypothesis pytest rich jinja2 xxhash triton"
# Of a look that the original takes a second for, in seconds; beyond it a mutant hangs.
TIMES, SLACK = 4.0, 20.0
Known = dict[tuple[str, str, str], str]


@dataclass
class Result:
    """The mutants of one file."""

    file: str
    killed: int = 0
    survivors: list[Mutant] = field(default_factory=list)
    seconds: float = 0.0


class Originals:
    """What the original takes for a look, found out when a mutant fails it or is slow with it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._verdicts: dict[Look, Verdict] = {}

    def limit(self, look: Look) -> float:
        return TIMES * self.passes(look).seconds + SLACK

    def passes(self, look: Look) -> Verdict:
        """Raises ClickException if the look fails on the original."""
        if look not in self._verdicts:
            self._verdicts[look] = judge(self._tree, [look], lambda _: 1200.0)
        verdict = self._verdicts[look]
        if verdict.what:
            raise click.ClickException(f"{' '.join(look)} fails without a mutation: {verdict.what}")
        return verdict


def files() -> list[str]:
    """Every file that is mutated, relative to the root."""
    found = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [str(path) for path in found if path.name != "__init__.py" and not str(path).startswith(LEFT_OUT)]


def accepted() -> Known:
    """Survivors that are known, by file, line and operator: to the reason why nothing needs to kill them."""
    if not SURVIVORS.is_file():
        return {}
    rows = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(row["file"], row["line"], operator): row["reason"] for row in rows for operator in row["operators"]}


def reason(known: Known, mutant: Mutant) -> str | None:
    """Why a survivor may survive: its row, or the row of its line and every operator, `*`."""
    return known.get((mutant.file, mutant.line, mutant.operator)) or known.get((mutant.file, mutant.line, "*"))


def attack(chosen: Iterator[str], trees: tuple[Tree, Tree], draw: Draw, say: Any) -> Iterator[Result]:
    """Judges the drawn mutants of the files in the first tree; the second keeps the originals."""
    tree, clean = trees
    originals = Originals(clean)
    for file in chosen:
        source = (clean.files / file).read_text(encoding="utf-8")
        plan = _plan(clean, file)
        result, started = Result(file), time.monotonic()
        for mutant, changed in draw(file, source):
            tree.write(file, changed)
            verdict = judge(tree, list(looks(plan)), originals.limit)
            if verdict.look is not None:
                originals.passes(verdict.look)
                result.killed += 1
            else:
                result.survivors.append(mutant)
            say(
                f"{mutant.id} {file}:{mutant.number} {mutant.operator} {verdict.what or 'SURVIVED'} "
                f"{verdict.seconds:.1f}s"
            )
        tree.write(file, source)
        result.seconds = time.monotonic() - started
        yield result


def _plan(tree: Tree, file: str) -> Plan:
    def work() -> Any:
        enter(tree.files, tree.package)
        plan = plan_of(tree.files, file)
        return plan.checks, plan.faults, plan.tests

    checks, faults, tests = call(work)
    return Plan(tuple(map(tuple, checks)), tuple(faults), tuple(tests))


@dataclass(frozen=True)
class Draw:
    """Which mutants of a file: those with the ids, or `size` of them in the random order of `seed`, 0 for all."""

    size: int
    seed: int
    ids: tuple[str, ...] = ()
    card: bool = False

    def __call__(self, file: str, source: str) -> Iterator[tuple[Mutant, str]]:
        if not self.ids:
            yield from sample(file, source, self.size, self.seed, card=self.card)
            return
        for mutant in mutants(file, source, card=self.card):
            if mutant.id in self.ids and (changed := mutant.source(source)):
                yield mutant, changed


def _work(chosen: Any, out: Any, trees: tuple[Tree, Tree], draw: Draw, log: Path | None) -> None:
    """A worker: takes files until it gets None."""

    def say(line: str) -> None:
        if log:
            with log.open("a") as file:
                file.write(line + "\n")

    try:
        for result in attack(iter(chosen.get, None), trees, draw, say):
            out.put(result)
        out.put(None)
    except BaseException as error:
        out.put(error)


def run(chosen: Sequence[str], draw: Draw, jobs: int, log: Path | None, scratch: Path) -> Iterator[Result]:
    """Results as they come, from `jobs` processes."""
    _preload()
    fork = multiprocessing.get_context("fork")
    todo, done = fork.SimpleQueue(), fork.SimpleQueue()
    for file in (*chosen, *[None] * jobs):
        todo.put(file)
    names = tracked(ROOT)
    clean = copy_of(ROOT, names, scratch / "clean")
    workers = []
    for i in range(jobs):
        trees = copy_of(clean.files, names, scratch / str(i)), clean
        workers.append(fork.Process(target=_work, args=(todo, done, trees, draw, log)))
        workers[-1].start()
    try:
        for _ in range(jobs):
            while (result := done.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                yield result
    finally:
        for worker in workers:
            worker.terminate()


def _preload() -> None:
    """What every child would have to load; nothing of ours."""
    for name in LIBRARIES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()


@click.command()
@click.argument("chosen", nargs=-1, metavar="[FILE]...")
@click.option("--sample", "size", type=click.IntRange(min=0), default=0, help="Mutants of each file; 0 is all.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sample.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--mutant", "ids", multiple=True, metavar="ID", help="Only this mutant of FILES; may be repeated.")
@click.option("--log", type=click.Path(path_type=Path), help="Gets a line for each mutant, with what noticed it.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Writes the table as Markdown.")
def main(
    chosen: Sequence[str],
    size: int,
    seed: int,
    jobs: int,
    ids: tuple[str, ...],
    log: Path | None,
    output: Path | None,
) -> None:
    """Mutates FILES, or every file of reference/, properties/ and impl/."""
    if unknown := [file for file in chosen if file not in files()]:
        raise click.BadParameter(f"{unknown[0]} is not one of {', '.join(files())}")
    console = Console(highlight=False, soft_wrap=True)
    draw = Draw(size, seed, ids, _card())
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as scratch:
        for result in run(chosen or files(), draw, jobs, log and log.resolve(), Path(scratch)):
            results.append(result)
            console.print(
                f"{result.file}: {result.killed} killed, {len(result.survivors)} survived, {result.seconds:.0f} s"
            )
    known = accepted()
    survivors = [mutant for result in results for mutant in result.survivors]
    new = [mutant for mutant in survivors if reason(known, mutant) is None]
    results.sort(key=lambda result: result.file)
    console.print(_table(results, known))
    for mutant in new:
        console.print(f"{mutant.id} {mutant.file}:{mutant.number}: {mutant.operator}: {mutant.line}", markup=False)
    console.print(_sum(results, known))
    if output:
        command = " ".join(["python tests/mutation/mutate.py", f"--sample {size} --seed {seed}", *chosen])
        output.write_text(_page(results, known, command))
    sys.exit(1 if new else 0)


def _card() -> bool:
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()


def _rows(results: list[Result], known: Known) -> Iterator[tuple[str, ...]]:
    for result in results:
        listed = sum(reason(known, mutant) is not None for mutant in result.survivors)
        survived = len(result.survivors)
        yield (result.file, *map(str, (result.killed + survived, result.killed, listed, survived - listed)))


def _sum(results: list[Result], known: Known) -> str:
    killed = sum(result.killed for result in results)
    survivors = [mutant for result in results for mutant in result.survivors]
    listed = sum(reason(known, mutant) is not None for mutant in survivors)
    every = killed + len(survivors)
    return (
        f"{killed} of {every} mutants killed ({killed / max(every, 1):.1%}), {listed} survive for a reason, "
        f"{len(survivors) - listed} for none."
    )


COLUMNS = ("mutants", "killed", "listed", "unlisted")


def _table(results: list[Result], known: Known) -> Table:
    table = Table("file", box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row in _rows(results, known):
        table.add_row(*row)
    return table


def _page(results: list[Result], known: Known, command: str) -> str:
    """The report as Markdown."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("cosmic-ray", "hypothesis", "torch"))
    lines = [
        "# Mutation testing",
        "",
        f"`{command}` on {date.today()}, Python {platform.python_version()}, {libraries}.",
        "",
        _sum(results, known),
        "",
        f"| file | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(f"| {' | '.join(row)} |" for row in _rows(results, known)),
    ]
    survivors = [mutant for result in results for mutant in result.survivors]
    if survivors:
        lines += ["", "| survivor | operator | line | why |", "|---|---|---|---|"]
    for mutant in survivors:
        code = mutant.line.replace("|", "\\|")
        lines.append(f"| {mutant.file} | {mutant.operator} | `{code}` | {reason(known, mutant) or '**unlisted**'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
