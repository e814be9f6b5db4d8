"""A campaign whose files were damaged says which one it is and what to do, whatever was done to it."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvlockstep.campaign import fuzz
from kvlockstep.campaign.store import DirectoryStore, finding_in
from kvlockstep.campaign.summary import status_of
from kvlockstep.core.errors import UsageError
from kvlockstep.core.profiles import profile_of
from kvlockstep.targets import resolve

FAULT = "fault:pool-occupy-toggles"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A campaign with a finding, a checkpoint and a journal."""
    directory = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvlockstep.campaign.store.CHECKPOINT_BYTES", 2_000)
        fuzz(resolve("slot_pool", FAULT), profile_of("quick"), seconds=60.0, directory=directory, shards=3)
    fuzz(resolve("slot_pool", FAULT), profile_of("quick"), seconds=60.0, directory=directory, shards=5)
    assert (directory / "checkpoint.json").is_file()
    assert list(directory.glob("findings/*.jsonl"))
    assert journal_of(directory).stat().st_size
    return directory


@pytest.fixture
def damaged(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "camp")
    return tmp_path / "camp"


def journal_of(directory):
    (path,) = directory.glob("journal.*")
    return path


def finding_of(directory):
    return next(directory.glob("findings/*.jsonl"))


FILES = {
    "plan": lambda directory: directory / "campaign.json",
    "checkpoint": lambda directory: directory / "checkpoint.json",
    "journal": journal_of,
    "finding": finding_of,
}
PIECES = [b"", b"[", b"0", b"-1", b"x", b'"', b"\xff"]
DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\n"),
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\n" + path.read_bytes()),
    "a number": lambda path: path.write_text("7\n"),
    "a list": lambda path: path.write_text("[]\n"),
    "an object": lambda path: path.write_text("{}\n"),
    "nested": lambda path: path.write_text("[" * 100_000 + "\n"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", FILES)
def test_a_damaged_part_is_named_with_what_to_do(run_cli, damaged, part, damage):
    path = FILES[part](damaged)
    DAMAGES[damage](path)
    for arguments in (
        ("status", damaged),
        ("fuzz", "slot_pool", "--target", FAULT, "--shards", "1", "--dir", damaged),
    ):
        code, out, err = run_cli(*arguments)
        assert code == 2, err
        assert not out
        assert len(err.splitlines()) <= 4  # one sentence, wrapped
        said = "".join(err.split())
        assert str(path) in said
        assert "startanotheronewithanother--dir" in said


def test_a_finding_that_is_gone(run_cli, damaged):
    path = finding_of(damaged)
    path.unlink()
    code, _, err = run_cli("status", damaged)
    assert code == 2
    assert path.name in "".join(err.split())


def test_a_lock_that_is_a_directory(run_cli, damaged):
    (damaged / "lock").unlink()
    (damaged / "lock").mkdir()
    for arguments in (("status", damaged), ("fuzz", "slot_pool", "--target", FAULT, "--shards", "1", "--dir", damaged)):
        code, _, err = run_cli(*arguments)
        assert code == 2
        assert "/lock" in "".join(err.split())


def test_a_record_that_leads_out_of_the_directory(damaged):
    with journal_of(damaged).open("a") as file:
        file.write(json.dumps({"record": "fixed", "file": "../../mine"}) + "\n")
    with pytest.raises(UsageError, match="is not a file name"):
        DirectoryStore(damaged).load()


def test_what_a_crash_left_of_a_line_is_no_damage(damaged):
    with journal_of(damaged).open("a") as file:
        file.write('{"record": "ti')
    assert DirectoryStore(damaged).load() is not None


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_bytes_are_changed_it_is_read_or_refused(whole, tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("changed") / "camp"
    shutil.copytree(whole, directory)
    path = FILES[data.draw(st.sampled_from(sorted(FILES)))](directory)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"[", b"0", b"-1", b"x", b'"', b"\xff"])
        )
    path.write_bytes(content)
    with contextlib.suppress(UsageError):
        store = DirectoryStore(directory)
        saved = store.load()
        if saved is not None:
            status_of(saved.plan, saved.ledger)
            saved.ledger.tasks()
            for name in saved.ledger.findings:
                finding_in(store, name, saved.plan["contract"])
