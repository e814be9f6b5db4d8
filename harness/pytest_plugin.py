"""pytest plugin: `--kvlockstep-target CONTRACT=module:factory` adds one test per target; registers Hypothesis profiles.

The tests hang under a collector named kvlockstep, so that their ids are `kvlockstep::CONTRACT=module:factory`. Such an
id is an argument of pytest as well, with the option or without it: it adds the target that it names.

The profiles kvlockstep-quick, kvlockstep-ci and kvlockstep-deep are registered and never loaded: choose one with
pytest's `--hypothesis-profile`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

COLLECTOR = "kvlockstep"
PREFIX = f"{COLLECTOR}::"

# pytest takes what follows a bracket in an id for parameters, and would not know the id again.
BRACKETS = {"[": "%5B", "]": "%5D"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvlockstep", "lockstep checks of KV-cache managers")
    group.addoption(
        "--kvlockstep-target",
        action="append",
        default=[],
        metavar="CONTRACT=MODULE:FACTORY|FILE.py:FACTORY",
        help="Check this target against a contract, as a test of its own; may be repeated.",
    )
    group.addoption(
        "--kvlockstep-profile", default="quick", metavar="PROFILE", help="quick, ci or deep (default quick)."
    )
    group.addoption("--kvlockstep-seed", type=int, default=0, metavar="N", help="Seed of the checks (default 0).")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import settings  # noqa: PLC0415

    from kvlockstep.core.profiles import PROFILES  # noqa: PLC0415

    for profile in PROFILES.values():
        settings.register_profile(
            f"kvlockstep-{profile.name}",
            max_examples=profile.examples,
            stateful_step_count=profile.steps_per_example,
            deadline=None,
        )
    if importlib.util.find_spec("hypothesis_crosshair_provider") is not None:
        settings.register_profile(
            "kvlockstep-symbolic", backend="crosshair", max_examples=20, stateful_step_count=6, deadline=None
        )
    _prepare(config)


def _prepare(config: pytest.Config) -> None:
    """Resolves the profile and every target, so that a mistake is one usage error before anything runs."""
    from kvlockstep.core.errors import UsageError  # noqa: PLC0415
    from kvlockstep.core.profiles import profile_of  # noqa: PLC0415

    ids = {arg: _unescaped(arg.removeprefix(PREFIX)) for arg in config.args if arg.startswith(PREFIX)}
    options = {f"--kvlockstep-target {value!r}": value for value in config.getoption("--kvlockstep-target")}
    try:
        config.stash[_PROFILE] = profile_of(config.getoption("--kvlockstep-profile"))
        config.stash[_TARGETS] = [_resolved(said, value) for said, value in (ids or options).items()]
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _resolved(said: str, value: str) -> Any:
    from kvlockstep.core.errors import UsageError  # noqa: PLC0415
    from kvlockstep.targets import resolve  # noqa: PLC0415

    contract, equals, spec = value.partition("=")
    if not equals:
        raise UsageError(f"{said}: give CONTRACT=MODULE:FACTORY or CONTRACT=FILE.py:FACTORY")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return resolve(contract, spec)


_PROFILE = pytest.StashKey[Any]()
_TARGETS = pytest.StashKey[list[Any]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    # Only now, since pytest-xdist has passed the arguments on to its workers; pytest would look for a file.
    session.config.args = [arg for arg in session.config.args if not arg.startswith(PREFIX)]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Session) and collector.config.stash[_TARGETS]:
        # Without an id of its own it would have that of a file without a name: "::kvlockstep".
        report.result = [*report.result, Targets.from_parent(collector, name=COLLECTOR, nodeid=COLLECTOR)]
    return report


class Targets(pytest.Collector):
    """The targets to check, one item each."""

    def collect(self) -> Iterator[pytest.Item]:
        for target in self.config.stash[_TARGETS]:
            name = _escaped(f"{target.contract}={target.name}")
            yield CheckItem.from_parent(self, name=name, target=target)


class CheckItem(pytest.Item):
    """One check of one target; fails with the failure page, also if the check is inconclusive."""

    def __init__(self, *, target: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    def runtest(self) -> None:
        from kvlockstep.core.capture import output_shown  # noqa: PLC0415
        from kvlockstep.runs.check import CheckFailed, check_target  # noqa: PLC0415
        from kvlockstep.runs.results import CheckResult  # noqa: PLC0415

        seed = self.config.getoption("--kvlockstep-seed")
        # pytest's -s is for what targets print, too.
        with output_shown() if self.config.getoption("capture") == "no" else nullcontext():
            report = CheckResult([check_target(self.target, self.config.stash[_PROFILE], seed=seed)])
        if not report.holds:
            raise CheckFailed(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from kvlockstep.core.errors import UsageError  # noqa: PLC0415
        from kvlockstep.runs.check import CheckFailed  # noqa: PLC0415

        if isinstance(excinfo.value, CheckFailed | UsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


def _escaped(text: str) -> str:
    for bracket, escaped in BRACKETS.items():
        text = text.replace(bracket, escaped)
    return text


def _unescaped(text: str) -> str:
    for bracket, escaped in BRACKETS.items():
        text = text.replace(escaped, bracket)
    return text
