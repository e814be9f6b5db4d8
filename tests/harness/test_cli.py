"""The command line: what it prints, and one clear message with exit code 2 for each kind of bad input."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from click import Context
from click.shell_completion import ShellComplete
from rich.console import Console

from kvlockstep.campaign import running
from kvlockstep.commands import fuzz as fuzzing
from kvlockstep.commands.cli import VERBS, cli
from kvlockstep.reference.kv_manager.traits import Traits
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits
from kvlockstep.reference.kv_tier.contract import TierTraits
from kvlockstep.runs.config import Config, load_config
from kvlockstep.runs.results import CheckResult, TargetResult
from kvlockstep.show import console
from kvlockstep.show.console import print_summary

MANAGER = """
import time
from kvlockstep.reference.kv_manager import KVManager

class Leaky(KVManager):
    def abort(self, rid):
        del self._live[rid].table[-1:]
        super().abort(rid)

class Partial:
    def __init__(self, blocks, block_size):
        self.total = 8
        self.can_fork = True

    def admit(self, rid, tokens, extra_key, n):
        return 0

def explodes(blocks, block_size):
    raise RuntimeError("no memory")

class Raises(KVManager):
    def append(self, rid, token):
        raise KeyError(rid)

class Engine(KVManager):
    engine, version = object(), lambda self: 1

class Slow(KVManager):
    def slots(self, rid):
        time.sleep(0.001)
        return super().slots(rid)

class Modest(KVManager):
    can_fork = can_withdraw = can_evict_all = False

class Named(KVManager):
    engine, version = "mine", "1.2"

number = 3
"""


@pytest.fixture
def managers(tmp_path, monkeypatch):
    (tmp_path / "managers.py").write_text(MANAGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "managers", raising=False)


def test_check_holds(run_cli):
    code, out, _ = run_cli("check", "slot_pool", "--target", "pool")
    assert code == 0
    line, summary = out.splitlines()
    assert re.fullmatch(r"slot_pool on pool +[\d,]+ steps +7 of 7 goals  HOLDS", line)
    assert summary.startswith("HOLDS: 1 target")


def test_check_tells_the_details_on_request(run_cli):
    _, out, _ = run_cli("check", "slot_pool", "--target", "pool", "--driver", "random", "-v")
    assert "laws: " in out
    assert "goals met: " in out
    assert re.search(r"random +[\d,]+ +\d+ episodes", out)


def test_a_narrow_terminal_shows_fewer_columns(run_cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run_cli("check", "slot_pool", "--target", "pool", "--driver", "random")
    assert out.splitlines()[0] == "slot_pool on pool  HOLDS"


def test_what_was_not_checked_is_said_once_for_all_targets(run_cli):
    targets = ("--target", "slots", "--target", "pool")
    _, out, _ = run_cli("check", "kv_manager", *targets, "--driver", "random")
    assert re.search(r"^not checked on every target \(-v says why\): \w+", out, re.MULTILINE)


def test_a_check_that_holds_names_the_traits_that_nobody_declared(run_cli, managers):
    """A manager that could fork and declares nothing holds; the summary must not look as if forks had been tried."""
    arguments = ("check", "kv_manager", "--target", "managers:Modest", "--driver", "random")
    _, out, _ = run_cli(*arguments)
    (line,) = (line for line in out.splitlines() if line.startswith("not checked (-v says why): laws "))
    named = line.partition("; traits not declared: ")[2].split(", ")
    assert {"can_fork", "can_withdraw", "groups"} <= set(named)
    assert not {"chunk", "can_reset", "prefix_cache", "max_length"} & set(named)
    _, out, _ = run_cli(*arguments, "-v")
    assert "  not tried: fork, fork_in_block (the target declares no can_fork)\n" in out
    _, out, _ = run_cli(*arguments, "--json")
    assert json.loads(out)["not_declared"]["kv_manager managers:Modest"]["can_fork"] == ["fork", "fork_in_block"]


def test_the_targets_of_an_engine_that_is_not_here_are_told_by_its_name():
    def told(*skipped):
        printed = Console(file=io.StringIO(), width=1000)
        print_summary(printed, CheckResult(skipped=dict.fromkeys(skipped, "it is not here")), seconds=1.0)
        return printed.file.getvalue().splitlines()[:-1]

    two = ["kv_manager on vllm-window", "kv_tier on vllm-cpu"]
    assert told(*two) == [f"skipped {label}: it is not here" for label in two]
    many = "skipped 4 targets that cannot run here (-v says why): vllm, theirs, sglang"
    assert told(*two, "kv_tier on theirs", "kv_scheduler on sglang-ngram") == [many]


def test_traits_of_many_contracts_are_counted():
    def told(targets):
        printed = Console(file=io.StringIO(), width=1000)
        print_summary(printed, CheckResult(targets), seconds=1.0)
        return printed.file.getvalue().splitlines()[0]

    traits = {"kv_manager": Traits(1, 1), "kv_scheduler": SchedulerTraits(1, 1), "kv_tier": TierTraits(1)}
    targets = [TargetResult(contract, "mine", facts={"traits": given}) for contract, given in traits.items()]
    assert re.fullmatch(r"not checked on every target \(-v says why\): traits not declared: \d\d", told(targets))
    assert "can_fork, " in told(targets[:2])


def test_help_shows_every_verb_whole(run_cli):
    _, out, _ = run_cli("--help")
    assert "..." not in out.partition("Commands")[0].partition("Check:")[2]
    assert re.findall(r"^  ([\w-]+)  +\w", out.partition("Check:")[2], re.MULTILINE) == VERBS
    for name, command in ((verb, cli.get_command(Context(cli), verb)) for verb in VERBS):
        assert f"Example:\n  kvlockstep {name}" in (command.epilog or "")


COMPLETION = {"_KVLOCKSTEP_COMPLETE": "zsh_complete", "COMP_WORDS": "kvlockstep che", "COMP_CWORD": "1"}


@pytest.mark.parametrize(("argument", "environment"), [("--help", {}), ("che", COMPLETION)])
def test_help_and_completion_import_no_verb_no_contract_and_no_hypothesis(argument, environment):
    code = f"import sys; sys.argv = ['kvlockstep', {argument!r}]; from kvlockstep.__main__ import _command; _command()"
    code += "; print(*sorted(sys.modules), file=sys.stderr)"
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "Check targets against a contract" in done.stdout
    slow = {"hypothesis", "torch", "kvlockstep.commands.check", "kvlockstep.models.kv_manager"}
    assert slow.isdisjoint(done.stderr.split())


def test_the_shell_completes_targets_and_profiles(run_cli):
    def completed(*words):
        complete = ShellComplete(cli, {}, "kvlockstep", "_KVLOCKSTEP_COMPLETE")
        return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]

    assert completed("check", "kv_manager", "--target", "rad") == ["radix"]
    assert completed("check", "slot_pool", "--target", "fault:pool-occupy-t") == ["fault:pool-occupy-toggles"]
    assert completed("fuzz", "kv_manager", "--profile", "d") == ["deep"]


def test_check_violated_saves_replays_and_heals(run_cli, managers, tmp_path):
    code, out, _ = run_cli("check", "kv_manager", "--target", "managers:Leaky")
    assert code == 1
    assert "VIOLATED" in out
    assert "replay: kvlockstep replay" in out
    (path,) = (tmp_path / ".kvlockstep/failures").glob("*.jsonl")
    replay = shlex.split(out.partition("replay: kvlockstep ")[2].splitlines()[0])
    assert replay == ["replay", f".kvlockstep/failures/{path.name}", "--target", "managers:Leaky"]

    code, _, err = run_cli("replay", path)
    assert code == 2
    assert "give --trust" in err
    code, out, _ = run_cli(*replay)
    assert code == 1
    assert "VIOLATED" in out

    code, out, _ = run_cli("check", "kv_manager", "--target", "managers:Leaky", "--driver", "random")
    assert code == 1
    assert "replay " in out

    (tmp_path / "managers.py").write_text(MANAGER.replace("[-1:]", "[:0]"))
    sys.modules["managers"].Leaky.abort = sys.modules["managers"].KVManager.abort
    code, out, _ = run_cli("replay", path, "--trust")
    assert code == 0
    assert "FIXED" in out
    code, out, _ = run_cli("check", "kv_manager", "--target", "managers:Leaky")
    assert code == 0
    assert "FIXED" in out
    assert not path.exists()


def test_json_goes_to_stdout_alone(run_cli):
    code, out, _ = run_cli("check", "kv_manager", "--target", "fault:kv-key-without-parent", "--json")
    result = json.loads(out)
    assert code == 1
    assert result["verdict"] == "violated"
    run = result["runs"][-1]
    assert set(run) >= {
        *("contract", "target", "driver", "verdict", "steps", "states", "seconds", "laws", "reach", "trace"),
    }
    assert run["laws"]["prefix_soundness"] == "violated"


def test_inconclusive_when_a_goal_is_missed(run_cli):
    code, out, _ = run_cli("check", "kv_manager", "--target", "reference", "--driver", "explore")
    assert code == 3
    assert "missed goals" in out


def test_an_exception_of_the_target_is_a_violation(run_cli, managers):
    code, out, _ = run_cli("check", "kv_manager", "--target", "managers:Raises")
    assert code == 1
    assert "error_contract" in out
    assert "KeyError" in out
    assert "internal error" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "kv_manger"), "unknown contract 'kv_manger'; did you mean kv_manager"),
        (("check", "kv_manager", "--target", "nosuch"), "unknown target 'nosuch' for kv_manager; known: reference"),
        (("check", "kv_manager", "--target", "nosuch.module:make"), "cannot import target"),
        (("check", "kv_manager", "--target", "managers:nosuch"), "has no 'nosuch'"),
        (("check", "kv_manager", "--target", "managers:number"), "is not callable"),
        (("check", "kv_manager", "--target", "managers:explodes"), "raised RuntimeError: no memory"),
        (("check", "kv_manager", "--target", "managers:Partial"), "lacks for kv_manager: append, reserve, copies"),
        (("check", "kv_manager", "--target", "fault:nosuch"), "unknown fault"),
        (("check", "--target", "reference"), "--target needs one CONTRACT"),
        (("check", "--profile", "fast"), "unknown profile 'fast'; known: quick, ci, deep"),
        (("check", "--driver", "magic"), "unknown driver 'magic'"),
        (("fuzz", "kv_manager", "--jobs", "0"), "--jobs 0: at least one worker"),
        (("fuzz", "kv_manager", "--time", "soon"), "--time 'soon'"),
        (("fuzz", "kv_manager", "--time", "0"), "--time '0'"),
        (("replay", "nosuch.jsonl"), "cannot read trace nosuch.jsonl"),
        (("fuzz", "kv_manager", "--dir", "managers.py/sub"), "cannot write to directory"),
        (("check", "slot_pool", "--dir", "managers.py/sub"), "cannot write to directory"),
        (("frobnicate",), "no command 'frobnicate'"),
    ],
)
def test_bad_input(run_cli, managers, arguments, message):
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not out


def test_all_missing_methods_are_named_at_once(run_cli, managers):
    _, _, err = run_cli("check", "kv_manager", "--target", "managers:Partial")
    for name in ("commit", "finish", "free_now", "block_size", "fork"):
        assert name in err
    assert "withdraw" not in err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("profil = 'ci'", "unknown keys in [tool.kvlockstep]: profil"),
        ("profile = 'fast'", "unknown profile"),
        ("profile = ['ci']", "profile = ['ci']: the name of a profile is needed"),
        ("contracts = 'kv_manager'", "a list of contracts is needed"),
        ("contracts = ['slot_pool', 3]", "contracts = ['slot_pool', 3]: a list of contracts is needed"),
        ("contracts = ['slots']", "contracts = ['slots']: unknown contract 'slots'"),
        ("targets = 3", "a table of contract = target"),
        ("targets = {slot_pool = 3}", "targets = {'slot_pool': 3}: a table of contract = target"),
        ("targets = {slot_pool = ['pool', true]}", "a table of contract = target"),
        ("targets = {slots = 'pool'}", "targets = {'slots': 'pool'}: unknown contract 'slots'"),
        ("seed = 'x'", "a number is needed"),
        ("seed = true", "seed = True: a number is needed"),
        ("seed = 1.0", "a number is needed"),
        ("dir = 3", "a path is needed"),
        ("dir = ''", "a path is needed"),
        ('dir = "a\\u0000b"', "a path is needed"),
        ("seed = ", "cannot read"),
        ("seed = " + "9" * 5_000, "cannot read"),
        ("seed = " + "[" * 100_000, "cannot read"),
    ],
)
def test_bad_configuration(run_cli, tmp_path, table, message):
    (tmp_path / "pyproject.toml").write_text(f"[tool.kvlockstep]\n{table}\n")
    code, out, err = run_cli("check")
    assert code == 2
    assert message in err
    assert "pyproject.toml" in err
    assert not out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tool = 5", "tool = 5: a table is needed, [tool]"),
        (b"tool = [{kvlockstep = 1}]", "a table is needed, [tool]"),
        (b"[tool]\nkvlockstep = 'ci'", "tool.kvlockstep = 'ci': a table is needed, [tool.kvlockstep]"),
        (b"[[tool.kvlockstep]]\nseed = 1", "a table is needed, [tool.kvlockstep]"),
        (b"[tool.kvlockstep]\ndir = 'gr\xfc\xdfe'", "given.toml:2: the file is not UTF-8"),
        (b"\xff\xfe[\x00", "given.toml:1: the file is not UTF-8"),
    ],
)
def test_a_configuration_that_cannot_be_read(run_cli, tmp_path, content, message):
    (tmp_path / "given.toml").write_bytes(content)
    code, out, err = run_cli("check", "--config", "given.toml")
    assert code == 2
    assert "given.toml" in err
    assert message in err
    assert not out


@pytest.mark.parametrize("given", ["pyproject.toml", "folder", "some/where.toml"])
def test_a_configuration_given_by_hand_has_to_be_there(run_cli, tmp_path, given):
    (tmp_path / "folder").mkdir()
    code, out, err = run_cli("check", "--config", given)
    assert code == 2
    assert given in err
    assert not out


def test_without_a_configuration_the_defaults_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config() == Config()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'engine'\n")
    assert load_config() == Config()


def test_configuration_chooses_targets(run_cli, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.kvlockstep]\ncontracts = ['slot_pool']\ntargets = {slot_pool = 'reference'}\ndir = 'found'\n"
    )
    code, out, _ = run_cli("check")
    assert code == 0
    assert "slot_pool on reference" in out
    assert (tmp_path / "found").is_dir()


def test_explore_prints_its_line(run_cli):
    code, out, _ = run_cli("explore", "slot_pool")
    assert code == 0
    assert "states, " in out
    assert "unique, depth" in out
    assert "exhausted" in out


def test_list(run_cli):
    code, out, _ = run_cli("list", "--json")
    assert code == 0
    assert "reference" in json.loads(out)["kv_manager"]["targets"]


def test_the_reference_needs_neither_torch_nor_hypothesis():
    program = (
        "import sys, kvlockstep, kvlockstep.reference.kv_manager\n"
        "print([m for m in ('torch', 'hypothesis', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_target_prints_is_not_among_the_results(tmp_path):
    (tmp_path / "talkative.py").write_text(
        "from kvlockstep.reference.slot_pool import SlotPool\n\n\n"
        "class Talkative(SlotPool):\n"
        "    def alloc(self):\n"
        "        print('one more')\n"
        "        return super().alloc()\n"
    )
    check = ["check", "slot_pool", "--target", "talkative:Talkative", "--driver", "random", "--json", "-s"]
    done = subprocess.run(
        [sys.executable, "-m", "kvlockstep", *check], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "holds"
    assert "one more" in done.stderr


@pytest.mark.parametrize(("factory", "header"), [("Engine", ""), ("Named", " (mine 1.2)")])
def test_an_engine_is_shown_if_it_is_a_name(run_cli, managers, factory, header):
    _, out, _ = run_cli("check", "kv_manager", "--target", f"managers:{factory}", "--driver", "random")
    assert out.splitlines()[0].endswith(f"HOLDS{header}")


def test_a_long_run_says_now_and_then_how_far_it_is(run_cli, monkeypatch):
    monkeypatch.setattr(console, "EVERY_SECONDS", 0.2)
    code, out, err = run_cli("check", "kv_manager", "--target", "reference", "--driver", "random", "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "holds"
    lines = err.splitlines()
    assert len(lines) > 1
    steps = [
        int(re.fullmatch(r"kv_manager on reference: random, ([\d,]+) steps", line)[1].replace(",", ""))
        for line in lines
        if line.endswith("steps")
    ]
    assert steps == sorted(steps)


def test_a_short_run_says_nothing_meanwhile(run_cli):
    assert run_cli("check", "slot_pool", "--target", "pool", "--driver", "random")[2] == ""


def test_fuzz_says_what_it_waits_for(run_cli, managers, tmp_path, monkeypatch):
    monkeypatch.setattr(fuzzing, "LATE_SECONDS", 0.0)
    monkeypatch.setattr(running, "CORPUS_SECONDS", 0.0)
    slow = ("fuzz", "kv_manager", "--target", "managers:Slow", "--time", "0.3s", "--json")
    _, out, err = run_cli(*slow, "--shard-episodes", 1, "--dir", "one")
    assert json.loads(out)["runs"][0]["states"] == 1
    assert err.startswith("the time of 0.3 s is up; running shards finish within 300 s")
    assert err.splitlines()[0].endswith("no shard has ended yet, --shard-episodes makes them shorter")
    assert json.loads((tmp_path / "one/campaign.json").read_text())["shard_episodes"] == 1
    _, _, err = run_cli(*slow, "--shard-episodes", 1, "--dir", "one")
    assert err.startswith("resuming after ")
    code, _, err = run_cli(*slow, "--dir", "one")
    assert code == 2
    assert "has shard_episodes 1, not 64" in err
