"""pytest plugin: `--kvlockstep-target CONTRACT=module:factory` adds one test per target; registers Hypothesis profiles.

The profiles kvlockstep-quick, kvlockstep-ci and kvlockstep-deep are registered and never loaded: choose one with
pytest's `--hypothesis-profile`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest


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

    from kvlockstep.profiles import PROFILES  # noqa: PLC0415

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
    if config.getoption("--kvlockstep-target"):
        _prepare(config)


def _prepare(config: pytest.Config) -> None:
    from kvlockstep.errors import UsageError  # noqa: PLC0415
    from kvlockstep.profiles import profile_of  # noqa: PLC0415
    from kvlockstep.targets import resolve  # noqa: PLC0415

    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        profile = profile_of(config.getoption("--kvlockstep-profile"))
        targets = []
        for option in config.getoption("--kvlockstep-target"):
            contract, equals, spec = option.partition("=")
            if not equals:
                raise UsageError(
                    f"--kvlockstep-target {option!r}: give CONTRACT=MODULE:FACTORY or CONTRACT=FILE.py:FACTORY"
                )
            targets.append(resolve(contract, spec))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_TARGETS] = [(target, profile) for target in targets]


_TARGETS = pytest.StashKey[list[tuple[Any, Any]]]()


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for target, profile in config.stash.get(_TARGETS, []):
        name = f"kvlockstep[{target.contract}={target.name}]"
        items.append(CheckItem.from_parent(session, name=name, target=target, profile=profile))


class CheckItem(pytest.Item):
    """One check of one target; fails with the failure page, also if the check is inconclusive."""

    def __init__(self, *, target: Any, profile: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.profile = profile

    def runtest(self) -> None:
        from kvlockstep.checking import CheckFailed, check_target  # noqa: PLC0415
        from kvlockstep.report import Report  # noqa: PLC0415

        seed = self.config.getoption("--kvlockstep-seed")
        report = Report([check_target(self.target, self.profile, seed=seed)])
        if not report.holds:
            raise CheckFailed(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from kvlockstep.checking import CheckFailed  # noqa: PLC0415

        if isinstance(excinfo.value, CheckFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name
