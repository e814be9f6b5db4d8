"""kvlockstep without torch and numpy: what does not need them works, what does says how to get them.

tests/wheel/try_wheel.py goes a new user's way where neither was ever installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

import kvlockstep
from kvlockstep import impl, models, properties, reference
from kvlockstep.targets.extras import ExtraMissing, missing_extra
from kvlockstep.targets.importing import load

ABSENT = ("torch", "numpy", "triton", "transformers", "__editable__", "distutils")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders of links: the installed packages but for ABSENT, and kvlockstep."""
    packages, own = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("own")
    folders = {Path(path) for path in (sysconfig.get_path("purelib"), pytest.__path__[0] + "/..")}
    for found in (path.resolve() for folder in folders for path in folder.resolve().iterdir()):
        link = packages / found.name
        if not found.name.startswith(ABSENT) and not link.exists():
            link.symlink_to(found)
    (own / "kvlockstep").mkdir()
    rooms = [Path(room.__path__[0]) for room in (reference, properties, models, impl)]
    for found in (*Path(kvlockstep.__path__[0]).iterdir(), *rooms):
        (own / "kvlockstep" / found.name).symlink_to(found)
    return [str(own), str(packages)]


@pytest.fixture
def run(installed: list[str], tmp_path: Path) -> Run:
    """Runs a module of Python in a folder of its own; -S keeps the usual site-packages away."""

    def run(*arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([*installed, str(tmp_path)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1"}
        command = [sys.executable, "-S", "-m", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done

    return run


def test_neither_is_there(run: Run) -> None:
    assert "No module named torch" in run("torch", code=1).stderr
    assert "No module named numpy" in run("numpy", code=1).stderr


@pytest.mark.parametrize("target", ["reference", "blocks", "slots", "paged"])
def test_managers_that_need_no_torch_run(run: Run, target: str) -> None:
    few = ("--shards", "1", "--shard-episodes", "4", "--jobs", "1")
    # So few episodes may miss a goal, which is exit code 3.
    assert "0 findings" in run("kvlockstep", "fuzz", "kv_manager", "--target", target, *few, code=None).stdout


def test_targets_that_were_not_named_are_skipped_with_a_note(run: Run) -> None:
    done = run("kvlockstep", "check", "block_pool", "slot_pool", "--driver", "random")
    assert "skipped block_pool on pool: target 'pool' needs numpy: pip install 'kvlockstep[torch]'" in done.stdout
    assert "HOLDS: 1 target, " in done.stdout


@pytest.mark.parametrize(
    ("contract", "target", "package"),
    [("kv_store", "tensors", "torch|numpy"), ("slot_prefix_cache", "tree", "torch"), ("kv_manager", "radix", "numpy")],
)
def test_a_target_that_was_named_says_which_extra_it_needs(run: Run, contract: str, target: str, package: str) -> None:
    said = run("kvlockstep", "check", contract, "--target", target, code=2).stderr
    assert any(
        f"target {target!r} needs {name}: pip install 'kvlockstep[torch]'" in said for name in package.split("|")
    )


def test_a_module_of_the_users_that_misses_torch_keeps_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    with pytest.raises(Exception, match="No module named 'torch'") as caught:
        load(f"{tmp_path}/theirs.py:Mine")
    assert not isinstance(caught.value, ExtraMissing)
    assert missing_extra("any", None) is None
