"""`new-target`: what it writes runs, says what is missing, and holds when it is filled in."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from driving import walk

from kvlockstep.commands.new_target import adapter_source, class_name
from kvlockstep.core.errors import UsageError
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.targets.registry import Target, validate


def filled_in(contract: str) -> str:
    """The adapter with every method passed on to the reference."""
    source = adapter_source("mine", contract)

    def passed_on(match: re.Match[str]) -> str:
        name, parameters, between = match["name"], match["parameters"], match["between"]
        names = re.findall(r"(\w+): ", parameters)
        call = f"self._inner.{name}" + ("" if match["property"] else f"({', '.join(names)})")
        return f"{match['property'] or ''}    def {name}(self{parameters}){between}return {call}"

    method = (
        r"(?P<property>    @property\n)?    def (?P<name>(?!__)\w+)\(self(?P<parameters>[^\n]*)\)"
        r"(?P<between> -> [^\n]*:\n(?:(?!    def |    @property|raise )[^\n]*\n)*?\s+)"
        r"raise NotImplementedError\(\"(?P=name)\"\)"
    )
    source, replaced = re.subn(method, passed_on, source)
    assert replaced == len([name for name in vars(CONTRACTS[contract].protocol) if not name.startswith("_")])
    module, _, reference = CONTRACTS[contract].reference.partition(":")
    made = f"        self._inner = {reference}({', '.join(CONTRACTS[contract].probe)})\n"
    head, init, body = source.partition("def __init__")[0], *source.partition("def __init__")[1:]
    signature, end, rest = body.partition(") -> None:\n")
    return f"{head}{init}{signature}{end}{made}{rest}".replace(
        "from __future__ import annotations\n",
        f"from __future__ import annotations\n\nfrom {module} import {reference}\n",
    )


@pytest.mark.parametrize("contract", list(MODELS))
def test_it_names_everything_that_the_contract_asks_for(contract):
    namespace: dict[str, object] = {}
    exec(compile(adapter_source("mine", contract), "mine.py", "exec"), namespace)
    made = namespace["Mine"](*CONTRACTS[contract].probe.values())
    for name in vars(CONTRACTS[contract].protocol):
        if not name.startswith("_"):
            assert hasattr(type(made), name)
    with pytest.raises(UsageError, match=r"^target 'mine': not filled in yet: [\w, ]+$"):
        validate(Target(contract, "mine", namespace["Mine"]))


@pytest.mark.parametrize("contract", list(MODELS))
def test_it_imports_what_is_ours_from_one_place(contract):
    for line in re.findall(r"^from kvlockstep\S*", adapter_source("mine", contract), re.MULTILINE):
        assert line == "from kvlockstep.reference.contracts"


def test_each_trait_says_what_it_means_before_it_says_when():
    for contract in CONTRACTS.values():
        for trait in contract.traits.values():
            assert not re.fullmatch(r"(Only )?[Ww]ith [^,]*", trait.summary), f"{contract.name}.{trait.name}"


@pytest.mark.parametrize("contract", list(MODELS))
def test_it_holds_when_it_is_filled_in(contract):
    namespace: dict[str, object] = {}
    exec(compile(filled_in(contract), "mine.py", "exec"), namespace)
    outcome = walk(model_of(contract), namespace["Mine"], 1_500, seed=0)
    assert outcome.failure is None
    assert outcome.steps >= 1500


@pytest.mark.parametrize("contract", ["kv_manager", "slot_pool"])
def test_unfilled_it_says_what_comes_next(run_cli, tmp_path, monkeypatch, contract):
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = run_cli("new-target", f"fresh_{contract}", "--contract", contract)
    assert code == 0
    command = out.splitlines()[-1].split()
    assert command[:3] == ["kvlockstep", "check", contract]
    code, _, err = run_cli(*command[1:], "--driver", "random")
    assert code == 2
    assert re.search(r"not filled in yet: \w+, \w+", err)
    assert not list(tmp_path.glob(".kvlockstep/failures/*")), "a method that is not written yet is no finding"


@pytest.mark.parametrize("folder", [".", "nt", "my dir", "package"])
def test_the_commands_that_it_prints_work_from_here(run_cli, tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    if folder == "package":
        (tmp_path / folder / "__init__.py").touch()
    code, out, _ = run_cli("new-target", "my_pool", "--contract", "slot_pool", "--dir", folder)
    assert code == 0
    source = filled_in("slot_pool").replace("class Mine", "class MyPool")
    said = "1 passed", "HOLDS: 1 target,"
    if folder != ".":
        # That the adapter is found shows by a finding as well, which ends the run at once.
        source = source.replace("return self._inner.version(slot)", "return 0")
        said = "VIOLATED", "VIOLATED"
    (tmp_path / folder / "my_pool.py").write_text(source)
    test, check = out.partition("`")[2].partition("`")[0], out.splitlines()[-1]
    for command, words_said in zip((test, check), said, strict=True):
        words = shlex.split(command)
        words[:1] = [sys.executable, "-m", words[0]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert words_said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("contract", list(MODELS))
def test_it_is_tidy(contract):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "120", "--select", "E,F,W,I", "-"],
        input=adapter_source("mine", contract),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("existing", ["mine.py", "test_mine.py"])
def test_it_overwrites_nothing(run_cli, tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    code, out, err = run_cli("new-target", "mine")
    assert code == 2
    assert f"{existing} exists already; nothing was written" in err
    assert not out
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my-manager",), "'my-manager' cannot be a module's name"),
        (("class",), "'class' cannot be a module's name"),
        (("json",), "'json' cannot be a module's name"),
        (("kv_scheduler",), "NAME is kv_scheduler, a contract: kvlockstep new-target NAME --contract kv_scheduler"),
        (("mine", "--contract", "kv_manger"), "unknown contract 'kv_manger'; did you mean kv_manager"),
        (("mine", "--dir", "nowhere"), "--dir nowhere: no such directory"),
        ((), "Missing argument"),
    ],
)
def test_bad_input(run_cli, tmp_path, arguments, message):
    code, out, err = run_cli("new-target", *arguments)
    assert code == 2
    assert message in err
    assert not out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "name"), [("my_manager", "MyManager"), ("vLLM2", "VLLM2"), ("__", "Target")])
def test_class_names(module, name):
    assert class_name(module) == name
