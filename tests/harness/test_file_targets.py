"""Targets named by the path of a Python file: what is imported, under which name, and from where."""

from __future__ import annotations

import json
import sys

import pytest

from kvlockstep.core.errors import UsageError
from kvlockstep.core.target_names import one_name
from kvlockstep.targets import importing, resolve
from kvlockstep.targets.importing import import_file, load

POOL = "from kvlockstep.impl.faulty import FAULTS\nbroken = FAULTS['pool-occupy-toggles'].make\n"


@pytest.fixture(autouse=True)
def import_state(monkeypatch):
    """Whatever is imported is forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(importing, "FOLDERS", [])
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("form", ["my-dir/my_file.py", "./my-dir/my_file.py", "my-dir/../my-dir/my_file.py", "{}"])
def test_a_file_is_imported_with_its_neighbours(folder, form):
    write(folder / "my-dir/my_core.py", "value = 7\n")
    write(folder / "my-dir/my_file.py", "from my_core import value\nclass Held:\n    inside = value\n")
    spec = form.format(folder / "my-dir/my_file.py")
    assert load(f"{spec}:Held.inside") == 7
    assert load("my-dir/my_file.py:Held") is load(f"{spec}:Held")
    assert load(f"{spec}:Held").__module__ == "my_file"


def test_a_file_in_packages_is_imported_in_them(folder):
    write(folder / "my-dir/outer_package/__init__.py")
    write(folder / "my-dir/outer_package/above.py", "value = 7\n")
    write(folder / "my-dir/outer_package/inner/__init__.py")
    write(folder / "my-dir/outer_package/inner/my_file.py", "from ..above import value\n")
    assert load("my-dir/outer_package/inner/my_file.py:value") == 7
    assert "outer_package.inner.my_file" in sys.modules


@pytest.mark.parametrize("name", ["queue.py", "turtle.py", "dotted.name.py", "with-dash.py", "with space.py"])
def test_names_that_are_no_modules_or_others(folder, name):
    write(folder / "sub" / name, "value = 7\n")
    standard = sys.modules.get("queue")
    assert load(f"sub/{name}:value") == 7
    assert sys.modules.get("queue") is standard


def test_two_files_of_the_same_name_are_two(folder):
    for sub, value in (("old", 1), ("new", 2)):
        write(folder / sub / "same_name.py", f"value = {value}\n")
    assert [load(f"{sub}/same_name.py:value") for sub in ("old", "new", "old")] == [1, 2, 1]


@pytest.mark.parametrize("neighbour", ["same_core.py", "same_core/__init__.py"])
def test_neighbours_of_the_same_name_are_not_mixed_up(folder, neighbour):
    for sub, value in (("old", 1), ("new", 2)):
        write(folder / sub / neighbour, f"value = {value}\n")
        write(folder / sub / "same_file.py", "from same_core import value\n")
    assert load("old/same_file.py:value") == 1
    with pytest.raises(UsageError, match="cannot both be imported as same_core: rename one"):
        load("new/same_file.py:value")


def test_a_module_that_fails_is_not_kept(folder):
    file = write(folder / "half_done.py", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_file(file)
    assert "half_done" not in sys.modules


def test_a_file_that_is_not_there(run_cli):
    code, out, err = run_cli("check", "kv_manager", "--target", "some/nosuch.py:Manager")
    assert code == 2
    assert err.strip() == "kvlockstep: cannot import target 'some/nosuch.py:Manager': there is no file some/nosuch.py"
    assert not out


def test_a_file_without_a_name_in_it(run_cli):
    code, _, err = run_cli("check", "kv_manager", "--target", "my_kv.py")
    assert code == 2
    assert err.strip() == (
        "kvlockstep: target 'my_kv.py' names no factory: give my_kv.py:NAME, the class or function in that file"
    )


def test_an_at_in_a_path_names_no_device(folder):
    write(folder / "a@b/my_pool.py", POOL)
    assert resolve("slot_pool", "a@b/my_pool.py:broken").name == "a@b/my_pool.py:broken"


def test_check_and_replay_name_it_as_it_was_given(run_cli, tmp_path):
    write(tmp_path / "my-dir/[red]pool.py", POOL)
    code, out, _ = run_cli("check", "slot_pool", "--target", "my-dir/[red]pool.py:broken")
    assert code == 1
    assert out.startswith("slot_pool on my-dir/[red]pool.py:broken ")
    (trace,) = (tmp_path / ".kvlockstep/failures").glob("*.jsonl")
    assert json.loads(trace.read_text().splitlines()[0])["target"] == "my-dir/[red]pool.py:broken"
    code, out, _ = run_cli("replay", trace, "--trust")
    assert code == 1
    assert out.strip().endswith("VIOLATED")


def test_a_campaign_with_workers_goes_on(run_cli, tmp_path):
    write(tmp_path / "my-dir/my_pool.py", POOL)
    arguments = ("fuzz", "slot_pool", "--target", "./my-dir/my_pool.py:broken", "--jobs", 2, "--dir", "camp", "--json")
    for shards in (2, 4):
        code, out, _ = run_cli(*arguments, "--shards", shards)
        assert code == 1
        assert json.loads(out)["runs"][0]["target"] == "./my-dir/my_pool.py:broken"
        assert json.loads(out)["shards"] == shards


def test_all_names_of_one_target_have_one_name_in_common(folder):
    write(folder / "package/__init__.py")
    for name in ("mine.py:make", "./mine.py:make", f"{folder}/mine.py:make", "mine:make"):
        assert one_name(name) == "mine:make"
    assert one_name("package/mine.py:make@cuda") == "package.mine:make@cuda"
    assert one_name("plain/mine.py:make") == "plain.mine:make"
    for own in ("blocks", "fault:kv-fork-no-copy", "../elsewhere/mine.py:make", "with-dash.py:make"):
        assert one_name(own) == own


def test_a_bug_found_under_one_name_is_known_under_the_other(folder, run_cli):
    write(folder / "pools.py", POOL)
    for name in ("pools.py:broken", "pools:broken", f"{folder}/pools.py:broken"):
        code, out, _ = run_cli("check", "slot_pool", "--target", name)
        assert code == 1
        assert f"slot_pool on {name} - VIOLATED" in out
        assert len(list((folder / ".kvlockstep/failures").iterdir())) == 1
    run_cli("fuzz", "slot_pool", "--target", "pools:broken", "--shards", "1", "--dir", "nightly")
    code, _, said = run_cli("fuzz", "slot_pool", "--target", "pools.py:broken", "--shards", "1", "--dir", "nightly")
    assert code == 1, said
