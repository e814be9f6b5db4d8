"""The README is true: its example passes, its failure page is what the command prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvlockstep.models.registry import MODELS
from kvlockstep.targets.registry import known_divergences

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


@pytest.fixture
def my_manager(tmp_path, monkeypatch):
    example = blocks("python")[0]
    (tmp_path / "my_manager.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_manager", raising=False)
    return example


def test_the_example_is_short_and_passes(run_cli, my_manager):
    assert len(my_manager.splitlines()) <= 30
    code, out, _ = run_cli("check", "kv_manager", "--target", "my_manager:MyManager")
    assert code == 0, out


def test_the_machine_example_passes(my_manager, tmp_path):
    (tmp_path / "test_machine.py").write_text(blocks("python")[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--hypothesis-profile", "kvlockstep-quick", "test_machine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_the_failure_page_is_what_the_command_prints(run_cli):
    page: str = next(block for block in blocks("") if "on fault:kv-fork-no-copy - VIOLATED" in block)
    _, out, _ = run_cli("check", "kv_manager", "--target", "fault:kv-fork-no-copy", "--driver", "random")
    assert page.strip() in out


def test_every_law_and_contract_is_in_the_tables():
    for contract, model in MODELS.items():
        assert f"`{contract}`" in README
        for law in model.laws:
            assert f"`{law.id}`" in README, law.id


def test_the_bugs_of_engines_are_counted():
    bugs = [known for known in known_divergences() if known.kind == "bug"]
    assert f"{len(bugs)} traces of bugs so far" in README
    examples = re.findall(r"^\| (\S+) (\d+\.\d+\.\d+) \| .* \| `(\w+)` \|", README, re.MULTILINE)
    assert examples
    for engine, version, law in examples:
        assert any((b.version, b.law) == (version, law) and b.id.startswith(engine.lower()) for b in bugs)
