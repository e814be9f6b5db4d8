"""What several tests use."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvlockstep.commands.cli import main
from kvlockstep.core.profiles import PROFILES

pytest_plugins = ["pytester"]

# On tensors as small as those of the tests a second thread only waits, and burns as much time as the first one: a
# Llama of two layers takes seven times as long. Nothing has imported torch yet. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton chooses its interpreter where its own functions are declared: before any test imports it.
with suppress(ImportError):
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests are in tests/suite. They come first: whoever begins one at the end lets other workers wait."""
    items.sort(key=lambda item: item.path.parent.name != "suite")


@pytest.fixture(autouse=True)
def _shorter_quick(monkeypatch):
    """Checks in this process play a fifth of the profile quick, which is enough to reach every goal."""
    quick = PROFILES["quick"]
    shorter = replace(quick, explore_steps=quick.explore_steps // 5, examples=6, random_steps=quick.random_steps // 5)
    monkeypatch.setitem(PROFILES, "quick", shorter)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where a target keeps its tensors."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.fixture
def run_cli(capsys, monkeypatch, tmp_path):
    """Runs the command line in an empty directory; answers exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
