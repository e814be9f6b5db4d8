"""kvlockstep in a process of its own on a system like Windows: without fork, timers, flock and the like."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Python runs it before anything of ours is imported.
HIDING = """
import multiprocessing, os, signal, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "termios", "pwd", "grp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
for name in ("fork", "forkpty", "setpgid", "killpg", "setsid", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)
for name in "setitimer getitimer alarm pthread_sigmask SIGALRM SIGKILL SIGHUP SIGQUIT SIGTSTP".split():
    if hasattr(signal, name):
        delattr(signal, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDING)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "kvlockstep", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def test_a_check_finds_shrinks_replays_and_makes_a_page(run: Run, tmp_path: Path) -> None:
    said = run("check", "kv_manager", "--target", "fault:kv-fork-no-copy", "--driver", "random", code=1).stdout
    assert "VIOLATED write_isolation at step 7 of 7" in said
    assert "on this system targets run in the process of the check" in " ".join(said.split())
    (trace,) = (tmp_path / ".kvlockstep/failures").iterdir()
    assert "VIOLATED" in run("replay", str(trace), code=1).stdout
    run("report", str(trace), "-o", "page.html")
    assert "write_isolation" in (tmp_path / "page.html").read_text()


def test_what_needs_a_fork_says_so(run: Run) -> None:
    for command in (("fuzz", "slot_pool", "--time", "1"), ("score", "--contract", "slot_pool")):
        assert "this command needs processes that fork" in run(*command, code=2).stderr


def test_what_needs_nothing_works(run: Run) -> None:
    run("list")
    run("explain", "write_isolation")
    run("new-target", "adapter")
    run("init", "my_adapter")
    run("explore", "slot_pool", "--depth", "2", "--target", "pool")
