"""`init`, and the CI files that it writes and docs/ci.md shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from click import Context
from places import ROOT

from kvlockstep.commands.cli import VERBS, cli
from kvlockstep.commands.init import SERVICES

TEMPLATES = ROOT / "harness" / "templates" / "ci"
FILES = dict.fromkeys(("github-gate.yml", "github-overnight.yml"), "vendor.github-workflows")
FILES["gitlab.yml"] = "vendor.gitlab-ci"


def valid(schema, *paths):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


def test_a_repository_is_set_up_and_nothing_is_overwritten(run_cli, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'mine'\nversion = '1'")
    code, out, _ = run_cli("init", "my_kv", "--ci", "github")
    assert code == 0
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text()) == {
        "project": {"name": "mine", "version": "1"},
        "tool": {"kvlockstep": {"contracts": ["kv_manager"], "targets": {"kv_manager": "my_kv.py:MyKv"}}},
    }
    gate = (tmp_path / ".github/workflows/kvlockstep.yml").read_text()
    assert "TARGET: my_kv.py:MyKv" in gate
    assert "--editable ." in gate
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    code, out, _ = run_cli("init", "my_kv", "--ci", "github")
    assert code == 0
    assert out.count("kept ") == len(SERVICES["github"]) + 4
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_second_contract_is_told_what_check_reads(run_cli):
    run_cli("init", "my_kv", "--ci", "none")
    _, out, _ = run_cli("init", "my_batches", "--contract", "kv_scheduler", "--ci", "none")
    assert "set targets.kv_scheduler = 'my_batches.py:MyBatches' there" in out
    assert "and have kv_scheduler among its contracts" in out


def test_the_configured_adapter_is_what_check_runs(run_cli, tmp_path):
    run_cli("init", "my_kv", "--ci", "none")
    (tmp_path / "my_kv.py").write_text("from kvlockstep.reference.kv_manager import KVManager as MyKv\n")
    code, out, _ = run_cli("check", "--driver", "random")
    assert code == 0, out
    assert out.startswith("kv_manager on my_kv.py:MyKv")


def test_a_repository_that_is_no_package_is_not_installed(run_cli, tmp_path):
    run_cli("init", "--ci", "gitlab")
    assert "--editable" not in (tmp_path / ".gitlab/kvlockstep.yml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("not-a-name",), "cannot be a module's name"),
        (("--dir", "nowhere"), "--dir nowhere: no such directory"),
        (("--contract", "kv_magic"), "unknown contract 'kv_magic'"),
    ],
)
def test_bad_arguments_write_nothing(run_cli, tmp_path, arguments, message):
    code, _, err = run_cli("init", *arguments)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_broken_pyproject_is_named(run_cli, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project")
    code, _, err = run_cli("init")
    assert code == 2
    assert "cannot read pyproject.toml: it is not TOML" in err
    assert not (tmp_path / "kv_adapter.py").exists()


def blocks_of_ci_page():
    return re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("template", FILES)
def test_docs_show_the_files_that_init_writes(template):
    assert (TEMPLATES / template).read_text() in blocks_of_ci_page()


@pytest.mark.parametrize("template", FILES)
def test_the_files_meet_the_schema_of_their_service(template, tmp_path):
    holds, said = valid(FILES[template], TEMPLATES / template)
    assert holds, said
    broken = tmp_path / "broken.yml"
    broken.write_text((TEMPLATES / template).read_text().replace("timeout", "time-out"))
    assert not valid(FILES[template], broken)[0]


@pytest.mark.parametrize("template", FILES)
def test_the_commands_of_the_files_are_understood(template):
    text = (TEMPLATES / template).read_text()
    commands = re.findall(r"^ *(?:- |run: )?(kvlockstep [a-z-]+ (?:[^\n]|\n +--)*)", text, re.MULTILINE)
    assert commands
    for command in commands:
        plain = command.replace("${{ github.run_number }}", "7").replace("$CI_PIPELINE_IID", "7")
        name, *arguments = shlex.split(plain)[1:]
        parsed = cli.get_command(Context(cli), name).make_context(name, arguments, resilient_parsing=True)
        assert not parsed.args


def test_the_gate_keeps_failing_traces_between_runs():
    yaml = pytest.importorskip("yaml")
    gate = yaml.safe_load((TEMPLATES / "github-gate.yml").read_text())
    steps = gate["jobs"]["check"]["steps"]
    used = [step["uses"].partition("@")[0] for step in steps if "uses" in step]
    assert used.index("actions/cache/restore") < used.index("actions/cache/save")
    assert "github/codeql-action/upload-sarif" in used
    assert gate["permissions"]["security-events"] == "write"
    caches = [step["with"] for step in steps if step.get("uses", "").startswith("actions/cache/")]
    assert {cache["path"] for cache in caches} == {".kvlockstep/failures"}
    assert len({cache["key"] for cache in caches}) == 1


def test_the_hook_runs_a_command_that_exists():
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, verb = hook["entry"].split()
    assert (program, verb in VERBS) == ("kvlockstep", True)
    assert hook["pass_filenames"] is False


@pytest.mark.parametrize("ci", ["github", "gitlab"])
def test_workflows_install_what_they_are_told(run_cli, tmp_path, ci):
    code, _, _ = run_cli("init", "mine", "--ci", ci, "--requirement", "git+https://host/kvlockstep#egg=kvlockstep")
    assert code == 0
    written = [path.read_text() for folder in (".github", ".gitlab") for path in (tmp_path / folder).rglob("*.yml")]
    assert written
    assert all('KVLOCKSTEP: "git+https://host/kvlockstep#egg=kvlockstep"\n' in text for text in written)
