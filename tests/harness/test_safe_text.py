"""What a target says, whatever it is, does no harm to a terminal or to any format."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlockstep.models.core.calls import describe_error
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.safe_text import safe_text

HOSTILE = "<script>alert(1)</script></pre>``` ]]> \x1b[2J\x00\r\x9b31m\u202e\ud800\uffff größe 日本語 🙂"
SAFE = "<script>alert(1)</script></pre>``` ]]> \\x1b[2J\\x00\\x0d\\x9b31m\\u202e\\ud800\\uffff größe 日本語 🙂"
MANAGERS = f"""
from kvlockstep.reference.kv_manager import KVManager
class Says(KVManager):
    engine, version = "\\x1b[2Jengine", "\\ud800"
    def commit(self, rid, n): raise ValueError({HOSTILE!a})
class Mute(BaseException):
    def __str__(self): raise ValueError
class SaysNothing(KVManager):
    def commit(self, rid, n): raise Mute
"""


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_safe_and_stays_so(text):
    safe = safe_text(text)
    assert safe_text(safe) == safe
    assert all(c in "\t\n" or ord(c) >= 32 for c in safe)
    ElementTree.fromstring(ElementTree.tostring(_element(safe), "unicode"))
    assert safe.encode().decode() == safe


def _element(text):
    element = ElementTree.Element("said")
    element.text = text
    return element


def test_what_is_harmless_stays_as_it_is():
    assert safe_text("größe\t日本語 🙂\n👩‍👩‍👧") == "größe\t日本語 🙂\n👩‍👩‍👧"
    assert safe_text(HOSTILE) == SAFE


def test_the_words_of_an_error_and_of_a_violation():
    assert describe_error(ValueError(HOSTILE)) == f"ValueError: {SAFE}"
    divergence = Divergence("coverage", HOSTILE, [HOSTILE])
    assert (divergence.message, divergence.details) == (SAFE, (SAFE,))
    assert str(divergence) == f"coverage: {SAFE}"


@pytest.mark.parametrize(("name", "message"), [("Says", f"commit raised ValueError: {SAFE}"), ("SaysNothing", "Mute")])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_hostile_target_in_every_format(tmp_path, name, message, encoding):
    (tmp_path / "managers.py").write_text(MANAGERS, encoding="utf-8")
    target = ("--target", f"managers:{name}")
    check = ("check", "kv_manager", *target, "--driver", "random", "--junit", "j.xml", "--sarif", "s.sarif")
    done = _run(tmp_path, encoding, *check)
    assert done.returncode == 1, done.stderr
    assert not set(done.stdout.decode(encoding)) & set("\x1b\x00\r\x9b\u202e")
    (trace,) = (tmp_path / ".kvlockstep/failures").iterdir()
    assert message in json.loads(trace.read_text(encoding="utf-8").splitlines()[0])["message"]
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert message in failure.get("message")
    (result,) = json.loads((tmp_path / "s.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert message in result["message"]["text"]
    assert result["message"]["markdown"].count("````") == (2 if name == "Says" else 0)
    assert _run(tmp_path, encoding, "report", trace, *target).returncode == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert _run(tmp_path, encoding, "replay", trace, *target, "--json").returncode == 1


def _run(folder, encoding, *arguments):
    command = [sys.executable, "-m", "kvlockstep", *map(str, arguments)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": encoding}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
