"""JUnit XML, SARIF and GitHub annotations."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta, timezone
from xml.etree import ElementTree

import pytest
from places import DATA

from kvlockstep.runs.results import HOLDS, VIOLATED, DriverResult
from kvlockstep.show import junit as formats
from kvlockstep.show.findings import Finding, Results, results_of_json, source_of
from kvlockstep.show.github import github_annotations
from kvlockstep.show.sarif import sarif

# The schema that the npm package @microsoft/jest-sarif 1.0.0-beta.0 (MIT) carries.
SCHEMA = DATA / "sarif-2.1.0-rtm.5.json"

BEGAN = datetime(2026, 2, 28, 23, 59, 59, 999_999, timezone(timedelta(hours=-2)))

# From the JUnit schema of Ant's format (JUnit.xsd): a date and time without fractions or time zone, a token.
TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}")
TOKEN = re.compile(r"\S+( \S+)*")

MANAGERS = """
from kvlockstep.reference.kv_manager import KVManager


class Leaky(KVManager):
    def abort(self, rid):
        del self._live[rid].table[-1:]
        super().abort(rid)


def make(blocks, block_size):
    return Leaky(blocks, block_size)
"""


@pytest.fixture
def managers(tmp_path, monkeypatch):
    (tmp_path / "leaky_managers.py").write_text(MANAGERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "leaky_managers", raising=False)


def junit(results: Results, host: str = "ci-3") -> str:
    return formats.junit(results, BEGAN, host)


def valid_sarif(text: str) -> dict:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(text)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result["locations"]:
            uri = location["physicalLocation"]["artifactLocation"]["uri"]
            assert not uri.startswith("/")
    return run


def counted_junit(text: str) -> ElementTree.Element:
    """The root element; every count is what there is to count."""
    root = ElementTree.fromstring(text)
    for suite in (root, *root.findall("testsuite")):
        cases = list(suite.iter("testcase"))
        assert int(suite.get("tests")) == len(cases)
        assert int(suite.get("failures")) == sum(case.find("failure") is not None for case in cases)
        assert int(suite.get("skipped")) == sum(case.find("skipped") is not None for case in cases)
        assert float(suite.get("time")) >= 0
    for suite in root:
        assert TIMESTAMP.fullmatch(suite.get("timestamp"))
        assert TOKEN.fullmatch(suite.get("hostname"))
        names = [(case.get("classname"), case.get("name")) for case in suite]
        assert len(set(names)) == len(names)
    return root


def test_the_schema_refuses_what_is_wrong():
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(sarif(Results(findings=[Finding("slot_pool", "pool", "accounting", "wrong", "page")])))
    document["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json.loads(SCHEMA.read_text()))


def test_a_violation(run_cli, managers, tmp_path):
    arguments = ("--target", "leaky_managers:Leaky", "--driver", "random")
    code, out, _ = run_cli("check", "kv_manager", *arguments, "--junit", "j.xml", "--sarif", "s.sarif")
    assert code == 1
    (trace,) = (tmp_path / ".kvlockstep/failures").glob("*.jsonl")
    run = valid_sarif((tmp_path / "s.sarif").read_text())
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "leaky_managers.py"
    assert MANAGERS.splitlines()[place["region"]["startLine"] - 1] == "class Leaky(KVManager):"
    assert result["level"] == "error"
    law = result["ruleId"].removeprefix("kv_manager/")
    assert f"VIOLATED {law}" in out
    replay = f"kvlockstep replay .kvlockstep/failures/{trace.name} --target leaky_managers:Leaky"
    assert result["properties"]["replay"] == replay
    root = counted_junit((tmp_path / "j.xml").read_text())
    (failed,) = (case for case in root.iter("testcase") if case.find("failure") is not None)
    assert failed.get("name") == law
    assert failed.get("classname") == "kv_manager.leaky_managers:Leaky.random"
    assert "VIOLATED" in failed.find("failure").text
    assert failed.find("failure").text in out

    before = result["partialFingerprints"]
    run_cli("check", "kv_manager", *arguments, "--sarif", "s.sarif")
    assert valid_sarif((tmp_path / "s.sarif").read_text())["results"][0]["partialFingerprints"] == before


def test_a_run_that_holds(run_cli, tmp_path):
    code, _, _ = run_cli("check", "slot_pool", "--target", "pool", "--junit", "j.xml", "--sarif", "s.sarif")
    assert code == 0
    assert valid_sarif((tmp_path / "s.sarif").read_text())["results"] == []
    root = counted_junit((tmp_path / "j.xml").read_text())
    assert [suite.get("name").rpartition(" ")[2] for suite in root] == ["explore", "hypothesis", "random"]
    assert root.get("failures") == "0"
    assert int(root.get("tests")) > 20


def test_an_inconclusive_run_is_not_green(run_cli, tmp_path):
    arguments = ("--target", "reference", "--driver", "explore", "--junit", "j.xml", "--sarif", "s.sarif")
    code, _, _ = run_cli("check", "kv_manager", *arguments)
    assert code == 3
    (result,) = valid_sarif((tmp_path / "s.sarif").read_text())["results"]
    assert (result["level"], result["ruleId"]) == ("warning", "kv_manager/reach")
    assert "long_request" in result["message"]["text"]
    root = counted_junit((tmp_path / "j.xml").read_text())
    failed = {
        case.get("name"): case.find("failure") for case in root.iter("testcase") if case.find("failure") is not None
    }
    assert "long_request" in failed
    assert failed["long_request"].get("type") == "inconclusive"


def test_laws_that_were_not_checked_say_why(run_cli, tmp_path):
    run_cli("check", "kv_manager", "--target", "slots", "--driver", "explore", "--junit", "j.xml")
    root = counted_junit((tmp_path / "j.xml").read_text())
    reasons = {case.get("name"): case.find("skipped") for case in root.iter("testcase")}
    skipped = {name: element.get("message") for name, element in reasons.items() if element is not None}
    assert all(reason and reason != "not checked" for reason in skipped.values())


def test_explore_fuzz_and_replay_write_them_too(run_cli, managers, tmp_path):
    verbs = {
        "explore": ("explore", "slot_pool", "--target", "fault:pool-occupy-toggles"),
        "fuzz": ("fuzz", "slot_pool", "--target", "fault:pool-occupy-toggles", "--time", "1s"),
    }
    for verb, arguments in verbs.items():
        code, _, _ = run_cli(*arguments, "--junit", f"{verb}.xml", "--sarif", f"{verb}.sarif")
        assert code == 1
        assert valid_sarif((tmp_path / f"{verb}.sarif").read_text())["results"]
        assert int(counted_junit((tmp_path / f"{verb}.xml").read_text()).get("failures")) >= 1
    trace = next((tmp_path / ".kvlockstep/failures").glob("*.jsonl"))
    code, _, _ = run_cli("replay", trace, "--junit", "replay.xml", "--sarif", "replay.sarif")
    assert code == 1
    assert len(valid_sarif((tmp_path / "replay.sarif").read_text())["results"]) == 1
    code, _, _ = run_cli("replay", trace, "--target", "pool", "--junit", "replay.xml", "--sarif", "replay.sarif")
    assert code == 0
    assert valid_sarif((tmp_path / "replay.sarif").read_text())["results"] == []
    assert counted_junit((tmp_path / "replay.xml").read_text()).get("failures") == "0"


def test_each_suite_says_when_and_where_it_ran():
    runs = [
        DriverResult("slot_pool", "pool", driver, HOLDS, 10, laws={"accounting": "held"})
        for driver in ("explore", "random")
    ]
    results = Results(runs, missed={("slot_pool", "pool"): ("hole",)}, skipped={"kv_manager on x": "not there"})
    suites = list(counted_junit(junit(results)))
    assert len(suites) == 4
    assert {(suite.get("timestamp"), suite.get("hostname")) for suite in suites} == {("2026-03-01T01:59:59", "ci-3")}
    assert {suite.get("hostname") for suite in counted_junit(junit(results, ""))} == {"localhost"}


def test_several_findings_of_one_law_are_told_apart():
    run = DriverResult(
        "slot_pool", "pool", "random", VIOLATED, 10, laws={"accounting": "violated", "atomicity": "held"}
    )
    findings = [Finding("slot_pool", "pool", "accounting", f"wrong {n}", "page", f"shape{n}") for n in range(3)]
    results = Results([run], findings)
    root = counted_junit(junit(results))
    assert (root.get("tests"), root.get("failures")) == ("4", "3")
    prints = [r["partialFingerprints"]["kvlockstepShape/v1"] for r in valid_sarif(sarif(results))["results"]]
    assert len(set(prints)) == 3


def test_two_runs_do_not_share_a_finding():
    laws = {"accounting": "violated"}
    runs = [DriverResult("slot_pool", name, "random", VIOLATED, 10, laws=laws) for name in ("pool", "reference")]
    findings = [Finding("slot_pool", name, "accounting", f"wrong in {name}", "page") for name in ("reference", "pool")]
    root = counted_junit(junit(Results(runs, findings)))
    messages = [case.find("failure").get("message") for case in root.iter("testcase")]
    assert messages == ["wrong in pool", "wrong in reference"]


def test_characters_that_xml_cannot_hold():
    message = "token \x00\x1b[31m <&> \ud800 ]]> \U0001f600"
    run = DriverResult("slot_pool", "pool", "random", VIOLATED, 10, laws={"accounting": "violated"})
    text = junit(Results([run], [Finding("slot_pool", "pool", "accounting", message, message)]))
    failure = counted_junit(text.encode().decode()).find("testsuite/testcase/failure")
    assert failure.text == "token \ufffd\ufffd[31m <&> \ufffd ]]> \U0001f600"


def test_what_was_skipped_is_named():
    results = Results(
        [DriverResult("slot_pool", "pool", "random", HOLDS, 1, laws={})], skipped={"kv_manager on x": "not there"}
    )
    root = counted_junit(junit(results))
    assert [case.find("skipped").get("message") for case in root.iter("testcase")] == ["not there"]
    run = valid_sarif(sarif(results))
    assert "not there" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_a_request_trace_has_a_finding_without_a_file():
    run = {"contract": "kv_manager", "target": "reference", "driver": "mooncake", "verdict": "violated"}
    result = {"runs": [{**run, "laws": {"accounting": "violated"}}], "message": "wrong", "details": ["more"]}
    results = results_of_json(result)
    assert [(f.law, f.message, f.page) for f in results.findings] == [("accounting", "wrong", "wrong\nmore")]
    assert valid_sarif(sarif(results))["results"]
    assert counted_junit(junit(results)).get("failures") == "1"


def test_annotations_in_a_github_workflow(run_cli, managers, monkeypatch):
    arguments = ("check", "kv_manager", "--target", "leaky_managers:Leaky", "--driver", "random")
    _, out, err = run_cli(*arguments)
    assert "::error" not in out + err
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, out, err = run_cli(*arguments, "--json")
    json.loads(out)
    (line,) = (line for line in err.splitlines() if line.startswith("::error"))
    place = re.match(
        r"::error file=leaky_managers.py,line=(\d+),title=kv_manager on leaky_managers%3ALeaky%3A (\w+)::", line
    )
    assert place is not None
    assert MANAGERS.splitlines()[int(place[1]) - 1] == "class Leaky(KVManager):"
    assert "%0A" in line


def test_annotations_escape_what_github_reads():
    results = Results(findings=[Finding("slot_pool", "a,b:c", "accounting", "", "50%\r\nmore, or: less")])
    (line,) = github_annotations(results)
    assert line == "::error title=slot_pool on a%2Cb%3Ac%3A accounting::50%25%0D%0Amore, or: less"
    results = Results(missed={("slot_pool", "pool"): ("hole",)})
    assert list(github_annotations(results)) == [
        "::warning title=slot_pool on pool%3A inconclusive::missed goals: hole"
    ]


def test_the_source_of_a_target(run_cli, managers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = MANAGERS.splitlines().index("def make(blocks, block_size):") + 1
    assert source_of("kv_manager", "leaky_managers:make") == ("leaky_managers.py", line)
    assert source_of("kv_manager", "reference") == ("", 1)
    assert source_of("kv_manager", "nosuch") == ("", 1)


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
@pytest.mark.parametrize("path", ["nowhere/x", "."])
def test_a_file_that_cannot_be_written_is_said_before_the_run(run_cli, option, path):
    code, out, err = run_cli("check", "slot_pool", option, path)
    assert code == 2
    assert f"{option} {path}: cannot write there" in err
    assert not out
