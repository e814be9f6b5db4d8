"""The README is true: its example passes, its failure page is what the command prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from places import ROOT

from kvlockstep.targets.registry import known_divergences

README = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


@pytest.fixture
def my_manager(tmp_path, monkeypatch):
    example = blocks("python")[0]
    (tmp_path / "my_manager.py").write_text(example)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_manager", raising=False)
    return example


# What is installed, and what runs everything, is for the tests of the wheel and for CI.
ELSEWHERE = ("pip ", "make ")
COMMANDS = [line for block in blocks("") for line in block.splitlines() if not line.startswith(ELSEWHERE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(run_cli, my_manager, tmp_path, command):
    name, *arguments = shlex.split(command)
    if name == "kvlockstep":
        code, out, err = run_cli(*arguments)
        assert code == ("fault:" in command), out + err
    elif name == "pytest":
        pytest_here = [sys.executable, "-m", name, *arguments]
        done = subprocess.run(pytest_here, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "1 passed" in done.stdout, done.stdout + done.stderr
    else:
        assert (name, arguments[0]) == ("python", "-c")
        exec(compile(arguments[1], command, "exec"), {})


def test_the_steps_for_ci_are_valid_and_run_a_command_that_runs(tmp_path):
    (steps,) = blocks("yaml")
    workflow = "name: ci\non: push\njobs:\n  check:\n    runs-on: ubuntu-latest\n    steps:\n"
    (tmp_path / "ci.yml").write_text(workflow + "".join(f"      {line}\n" for line in steps.splitlines()))
    schema = ["--builtin-schema", "vendor.github-workflows", str(tmp_path / "ci.yml")]
    subprocess.run([sys.executable, "-m", "check_jsonschema", *schema], check=True, capture_output=True)
    (command,) = re.findall(r"^- run: (kvlockstep check .*) --profile ci$", steps, re.MULTILINE)
    assert command in COMMANDS


def test_the_machine_example_passes(my_manager, tmp_path):
    (tmp_path / "test_machine.py").write_text(blocks("python", RUNNING)[0])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--hypothesis-profile", "kvlockstep-quick", "test_machine.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_the_failure_page_and_its_picture_are_what_the_commands_print(run_cli, tmp_path):
    page: str = next(block for block in blocks("", RUNNING) if "on fault:kv-fork-no-copy - VIOLATED" in block)
    _, out, _ = run_cli("check", "kv_manager", "--target", "fault:kv-fork-no-copy", "--driver", "random")
    assert page.strip() in out
    (trace,) = (tmp_path / ".kvlockstep/failures").glob("*.jsonl")
    run_cli("report", trace, "-o", "finding.svg")

    def words(picture):
        return "".join(ElementTree.parse(picture).getroot().itertext())

    assert words(tmp_path / "finding.svg") == words(ROOT / "docs" / "finding.svg")


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def anchors(page):
    """The anchors of the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_a_heading():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link, anchor in re.findall(r"\]\(([\w./]*)#([^)]+)\)", page.read_text()):
            assert anchor in anchors(page.parent / link if link else page), f"{page.name}: {link}#{anchor}"


def test_the_bugs_of_engines_are_counted():
    bugs = [known for known in known_divergences() if known.kind == "bug"]
    assert f"has found {len(bugs)} bugs" in README
    examples = re.findall(r"^\| (\S+) (\d+\.\d+\.\d+) \| .* \| `(\w+)` \|", README, re.MULTILINE)
    assert examples
    for engine, version, law in examples:
        assert any((b.version, b.law) == (version, law) and b.id.startswith(engine.lower()) for b in bugs)


def test_the_map_names_what_is_there():
    """Paths in the pages for developers exist; a name in angle brackets or x stands for any."""
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / page).read_text()
        paths = re.findall(
            r"`((?:reference|properties|models|impl|harness|tests|drivers|runs|show|commands)/[\w./<>*]+)`", text
        )
        for path in paths:
            general = re.sub(r"<\w+>", "*", path).replace("NAME", "*").replace("ENGINE", "*")
            if re.search(r"(^|/)x(\.py|/|$)|test_x", general):
                continue
            found = [*ROOT.glob(general.rstrip("/")), *(ROOT / "harness").glob(general.rstrip("/"))]
            assert found, f"{page}: {path}"
