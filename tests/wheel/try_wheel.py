"""Installs a wheel of kvlockstep, without extras, in a fresh environment outside the repository, and uses it.

    python tests/wheel/try_wheel.py build/wheel/kvlockstep-*.whl

Prints what each step took, and how large the wheel and the environment are. Exits with 1 at the first step that fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
ADAPTER = """from kvlockstep.reference.kv_manager.manager import KVManager


class MyManager(KVManager):
    pass
"""
TEST = """import kvlockstep
from my_manager import MyManager


def test_my_manager():
    assert kvlockstep.check(MyManager, contract="kv_manager").holds
"""
BROKEN = ("check", "kv_manager", "--target", "fault:kv-fork-no-copy")
FAILURES = Path(".kvlockstep", "failures")


class StepFailed(Exception):
    """A step did not end as it should."""


def step(name: str, command: Sequence[str | Path], folder: Path, code: int = 0) -> str:
    """Runs one command, prints its seconds, and returns its output. Raises StepFailed for another exit code."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != code:
        raise StepFailed(f"{name}: exit code {done.returncode} instead of {code}\n{said}")
    print(f"{name:<28}{time.perf_counter() - began:8.1f} s", flush=True)
    return said


def expect(text: str, said: str) -> None:
    """Raises StepFailed if the output does not have the text."""
    if text not in said:
        raise StepFailed(f"{text!r} is not in the output:\n{said}")


def try_wheel(wheel: Path, folder: Path) -> None:
    """The first quarter of an hour of a new user. Raises StepFailed."""
    environment, work = folder / "environment", folder / "work"
    work.mkdir()
    venv.create(environment)
    python, kvlockstep = environment / "bin" / "python", environment / "bin" / "kvlockstep"
    # The pip of this interpreter: to unpack another one takes longer than what it installs.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--constraint", CONSTRAINTS]
    before = megabytes(environment)
    step("install", [*pip, wheel], work)
    installed = megabytes(environment) - before
    step("install pytest", [*pip, "pytest"], work)
    for absent in ("torch", "numpy"):
        step(f"no {absent}", [python, "-c", f"import {absent}"], work, code=1)
    expect("kv_manager", step("list", [kvlockstep, "list"], work))
    step("new-target", [kvlockstep, "new-target", "adapter"], work)
    if not (work / "test_adapter.py").is_file():
        raise StepFailed("new-target wrote no test_adapter.py")
    expect("VIOLATED", step("check a broken manager", [kvlockstep, *BROKEN], work, code=1))
    (trace,) = (work / FAILURES).iterdir()
    step("report", [kvlockstep, "report", trace, "-o", "page.html"], work)
    expect(trace.name.split("-")[1], (work / "page.html").read_text())
    (work / "my_manager.py").write_text(ADAPTER)
    (work / "test_my_manager.py").write_text(TEST)
    expect("1 passed", step("pytest", [python, "-m", "pytest", "-q", "test_my_manager.py"], work))
    needs = step("kv_store without torch", [kvlockstep, "check", "kv_store", "--target", "tensors"], work, code=2)
    expect("pip install 'kvlockstep[torch]'", needs)
    print(f"{'wheel':<28}{wheel.stat().st_size / 1e6:8.1f} MB")
    print(f"{'installed, without extras':<28}{installed:8.1f} MB")


def megabytes(folder: Path) -> float:
    """The size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            try_wheel(parser.parse_args().wheel.resolve(), Path(temporary))
        except StepFailed as failed:
            sys.exit(str(failed))
