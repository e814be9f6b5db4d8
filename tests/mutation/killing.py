"""What kills a mutant: imports, checks of the targets that rest on the file, faults no longer seen, and tests.

Everything here runs in a forked child of a process that has loaded the libraries, and none of ours.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOMS = ("reference", "properties", "models", "impl")
STEP_SECONDS = 4.0
SHORT_STEPS = 2_000
MEMORY = 6 << 30
# Files that many contracts rest on get a short look at each of them.
MANY = 4
COMPONENT_TESTS = (
    *("slot_pool", "slot_prefix_cache", "block_stack", "radix_cache", "radix_manager", "block_pool", "paged_cache"),
    *("kv_store", "decode_graphs", "kv_streams", "kv_managers", "kv_scheduler", "kv_kernels"),
)
# Files that no target of the CPU rests on, or that other tests are about.
TESTS_OF = {
    "impl/kernels.py": "kv_kernels",
    "impl/kv_store/moves.py": "kv_kernels",
    "impl/kv_store/quantising.py": "kv_kernels",
    "impl/kv_manager/generation.py": "end_to_end",
    "properties/law.py": "score slot_pool",
    "properties/proofs.py": "prove",
    "reference/catalogue.py": "new_target factories",
    "reference/errors.py": "kv_managers factories",
    "reference/kv_manager/contract.py": "kv_managers factories",
}
# Tests that do at length what a check has done when they would come.
REPEATS = re.compile(
    "agrees_with_the_reference|agrees_in|every_state|states_of|TestLockstep::test_random|Machine|faults?_(is|are)_caught"
    "|a_faulty_manager|catches_a_fault|small_scope|and_reaches|nodes_are_in_order"
)
CONTRACT_TESTS = {"kv_manager": "kv_managers"}


@dataclass(frozen=True)
class Plan:
    """What is run for a file: (contract, target) pairs to check, contracts whose faults must be seen, test files."""

    checks: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    tests: tuple[str, ...]


def imports(tree: Path, file: str) -> set[str]:
    """The files of ours, relative to the tree, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse((tree / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            found |= {path for name in names if (path := file_of(tree, name))}
    # A package shows names of its files: who imports one rests on the file that has it.
    packages = {path for path in found if path.endswith("/__init__.py")} - {file}
    return found.union(*(imports(tree, package) for package in packages))


def file_of(tree: Path, module: str) -> str | None:
    """The file of a module in the four rooms, relative to the tree; that of a package is its `__init__`."""
    path = module.removeprefix("kvlockstep.").replace(".", "/")
    if not module.startswith("kvlockstep.") or path.split("/")[0] not in ROOMS:
        return None
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if (tree / file).is_file()), None)


def test_file(tree: Path, name: str) -> str:
    """The file of `test_NAME`, relative to the tree."""
    (found,) = (tree / "tests").glob(f"*/test_{name}.py")
    return str(found.relative_to(tree))


def closure(tree: Path, *files: str) -> set[str]:
    """The files and everything that they import, ours only."""
    done: set[str] = set()
    left = list(files)
    while left:
        file = left.pop()
        if file not in done:
            done.add(file)
            left += imports(tree, file)
    return done


def plan_of(tree: Path, file: str) -> Plan:
    """What can notice a change in the file. Imports ours, so it needs a child of its own."""
    from kvlockstep.models.registry import MODELS  # noqa: PLC0415
    from kvlockstep.targets.registry import OWN_TARGETS  # noqa: PLC0415

    folder = file.partition("/")[0]
    checks, contracts = [], []
    for contract in MODELS:
        lockstep = contract not in ("kv_manager", "kv_scheduler")
        modules = {name: file_of(tree, path.partition(":")[0]) or "" for name, path in OWN_TARGETS[contract].items()}
        judged = file in closure(tree, file_of(tree, f"kvlockstep.models.{contract}") or "")
        for name, module in modules.items():
            rests = file in closure(tree, module)
            own = name == "reference"
            if folder == "impl" and not own and rests:
                checks.append((contract, name))
            if folder == "reference" and (not own if lockstep else own) and (judged or rests):
                checks.append((contract, name))
            if folder == "properties" and judged:
                checks.append((contract, name))
        if judged or any(file in closure(tree, module) for module in modules.values()):
            contracts.append(contract)
    few = contracts if len(contracts) < MANY else []
    tests = {CONTRACT_TESTS.get(contract, contract) for contract in few}
    tests |= {name for name in COMPONENT_TESTS if _about(tree, file, imports(tree, test_file(tree, name)))}
    if checks:
        tests.add("laws" if folder == "properties" else "factories")
    if file in TESTS_OF:
        tests = set(TESTS_OF[file].split())
        checks = [] if folder == "impl" or "proofs" in file else checks
        contracts = [] if "proofs" in file else contracts
    faults = tuple(contracts) if folder == "properties" else ()
    return Plan(tuple(checks), faults, tuple(test_file(tree, name) for name in sorted(tests)))


def _about(tree: Path, file: str, imported: set[str]) -> bool:
    """Whether a test with these imports is about the file: it imports it, or something of impl that does."""
    return (file in imported and file not in ("reference/errors.py", "properties/law.py")) or any(
        file in imports(tree, other) for other in imported if other.startswith("impl/") and file.startswith("impl/")
    )


Look = tuple[str, ...]


class Killed(Exception):
    """Something noticed. `look` is what to run on the original to see that it does not."""

    def __init__(self, what: str, look: Look | None = None) -> None:
        super().__init__(what)
        self.look = look


def looks(plan: Plan) -> Iterator[Look]:
    """What is run for a file, the quickest first."""
    yield ("imports",)
    for contract, target in plan.checks:
        yield "walk", contract, target
    for contract in plan.faults:
        yield "faults", contract
    if len({contract for contract, _ in plan.checks}) < MANY:
        for contract, target in plan.checks:
            # A law that blames one of those that agree with each other blames them all.
            if not plan.faults or target == "reference":
                yield "check", contract, target
    if "kv_manager" in plan.faults:
        yield ("variants",)
    for test in plan.tests:
        yield ("test", test, REPEATS.pattern) if plan.checks else ("test", test)


def look_at(look: Look) -> None:
    """Runs one look in this process, whose directory is the tree. Raises Killed with what noticed a change."""
    kind, *arguments = look
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            LOOKS[kind](*arguments)
        except Killed as killed:
            killed.look = killed.look or look
            raise
        except Exception as error:
            raise Killed(f"{' '.join(look)}: {type(error).__name__}", look) from error


def _imports() -> None:
    importlib.import_module("kvlockstep.commands.cli")


def _target(contract: str, name: str):
    from kvlockstep.targets import resolve  # noqa: PLC0415

    return resolve(contract, name)


def _drive(contract: str, name: str, driver: str, **budget: int):
    from kvlockstep.core.profiles import profile_of  # noqa: PLC0415
    from kvlockstep.runs.drive import drive  # noqa: PLC0415

    profile = replace(profile_of("quick"), step_seconds=STEP_SECONDS, **budget)
    outcome = drive(driver, _target(contract, name), profile, seed=0)
    if outcome.failure is not None:
        raise Killed(f"{contract} on {name}: {driver}: {outcome.failure.law}")
    return outcome


def _walk(contract: str, name: str) -> None:
    _drive(contract, name, "random", random_steps=SHORT_STEPS)


def _check(contract: str, name: str) -> None:
    """Profile quick, whole, goals included."""
    from kvlockstep.drivers.episode import missed_goals  # noqa: PLC0415
    from kvlockstep.models.registry import model_of  # noqa: PLC0415

    outcomes = [_drive(contract, name, driver) for driver in ("random", "hypothesis", "explore")]
    total = outcomes[0]
    for other in outcomes[1:]:
        total.reach += other.reach
        total.unreachable = (total.unreachable or set()) & (other.unreachable or set())
    if missed := missed_goals(model_of(contract), total.reach, total.unreachable):
        raise Killed(f"{contract} on {name}: {missed[0]} not reached")


def _faults(contract: str) -> None:
    """The shortest trace of each fault shows it, by the law that it was saved with and the one that was expected."""
    from kvlockstep.core.trace import load_trace  # noqa: PLC0415
    from kvlockstep.core.watchdog import Watchdog  # noqa: PLC0415
    from kvlockstep.drivers.episode import run_ops  # noqa: PLC0415
    from kvlockstep.models.registry import model_of  # noqa: PLC0415
    from kvlockstep.runs.score import laws_that_see  # noqa: PLC0415
    from kvlockstep.targets.registry import faults  # noqa: PLC0415

    for fault in faults().values():
        if fault.contract != contract:
            continue
        trace = load_trace(Path("tests/data/faults", contract, f"{fault.id}.jsonl"), contract)
        target = _target(contract, f"fault:{fault.id}")
        with Watchdog(STEP_SECONDS).watching() as watchdog:
            again = run_ops(model_of(contract), target.factory, trace.scope, trace.ops, watchdog)
        laws = list(laws_that_see(target, trace))
        if again is None or again.law != trace.law or fault.law not in laws:
            raise Killed(f"{fault.id}: seen by {', '.join(laws) or 'no law'}")


def _variants() -> None:
    from kvlockstep.impl.variants.kv_manager import VARIANTS  # noqa: PLC0415

    for name in VARIANTS:
        _drive("kv_manager", f"variant:{name}", "random", random_steps=2 * SHORT_STEPS)


def _test(test: str, without: str = "^$") -> None:
    import pytest  # noqa: PLC0415

    failed = Failures(re.compile(without))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "--no-header"]
    code = pytest.main([*options, test], plugins=[failed])
    if code == 5 and not failed.left_out:
        raise Killed(f"{test}: no test ran; is something missing that it needs?", ("test", test))
    if code not in (0, 5):
        raise Killed(failed.first or f"{test}: exit code {code}", ("test", failed.first or test))


class Failures:
    """A pytest plugin that keeps the first failure, and leaves out the tests of a pattern."""

    def __init__(self, without: re.Pattern[str]) -> None:
        self.first = ""
        self.left_out = 0
        self._without = without

    def pytest_collection_modifyitems(self, items) -> None:
        kept = [item for item in items if not self._without.search(item.nodeid)]
        self.left_out = len(items) - len(kept)
        items[:] = kept

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid

    def pytest_collectreport(self, report) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid


LOOKS: dict[str, Callable[..., None]] = {
    "imports": _imports,
    "walk": _walk,
    "faults": _faults,
    "check": _check,
    "variants": _variants,
    "test": _test,
}


def enter(tree: Path, package: Path) -> None:
    """Makes `kvlockstep` the copy in `package`, in this process and those that it starts."""
    assert not any(name.partition(".")[0] == "kvlockstep" for name in sys.modules)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.path.insert(0, str(package))
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(package), PYTHONDONTWRITEBYTECODE="1", CI="1")
    os.chdir(tree)
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
