"""`report` of campaigns, of the results of runs, and of scores."""

from __future__ import annotations

import json

import pytest
from pages import PLAIN_SCORE, Page

from kvlockstep.models.registry import MODELS


def test_a_folder_of_traces_is_no_campaign(run_cli, finding, tmp_path):
    code, out, _ = run_cli("report", finding.parent, "-o", "page.html")
    assert code == 0
    assert "page.html: 1 finding, " in out
    assert "Findings in " in Page((tmp_path / "page.html").read_text()).text
    _, out, _ = run_cli("check", "slot_pool", "--target", "fault:pool-occupy-toggles", "--driver", "explore", "--json")
    (tmp_path / "results.json").write_text(out)
    code, out, _ = run_cli("report", "results.json", "-o", "page.html")
    assert "page.html: results of a run, " in out


def test_a_campaign_directory(run_cli, finding, tmp_path):
    where = finding.parent
    run_cli("check", "slot_pool", "--target", "fault:pool-occupy-toggles", "--dir", where)
    (where / "broken.jsonl").write_text("{")
    status = {
        **{"contract": "kv_manager", "steps": 3000, "seconds": 1.5, "episodes": 12, "unique": 800, "failures": 2},
        "reach": {"hit": 7, "fork": 0},
        "unreachable": ["extra_key"],
        "history": [[0.5, 1000, 400], [1.0, 2200, 650], [1.5, 3000, 800]],
    }
    (where / "status.json").write_text(json.dumps(status))
    code, out, _ = run_cli("report", where, "-o", "page.html")
    assert code == 0
    assert "page.html: a campaign, " in out
    page = Page((tmp_path / "page.html").read_text())
    assert "2,000 steps/s" in page.text
    assert "800 states, counted in 1 episode of 64" in page.text
    assert "write_isolation" in page.text
    assert "slot_pool" in page.text
    assert "broken.jsonl" in page.text
    timelines = [Page(attributes["srcdoc"]) for tag, attributes in page.tags if tag == "iframe"]
    assert len(timelines) == 2
    assert all(timeline.of_class("moment") for timeline in timelines)
    assert len([tag for tag, _ in page.tags if tag == "polyline"]) == 2
    rates = next(attributes["points"] for tag, attributes in page.tags if tag == "polyline")
    assert len(rates.split()) == 2
    heights = [float(point.split(",")[1]) for point in rates.split()]
    assert heights[0] == 10.0
    assert heights[1] == pytest.approx(170 - 160 * 1600 / 2400, abs=0.1)
    assert len(page.of_class("missed")) == len(
        [g for g in MODELS["kv_manager"].goals if g.id not in ("hit", "extra_key")]
    )


def test_the_results_of_fuzz(run_cli, tmp_path):
    _, out, _ = run_cli("fuzz", "block_pool", "--target", "fault:bp-refused-takes", "--time", "1s", "--json")
    (tmp_path / "fuzz.json").write_text(out)
    code, _, _ = run_cli("report", "fuzz.json", "-o", "page.html")
    assert code == 0
    result = json.loads(out)
    page = Page((tmp_path / "page.html").read_text())
    assert f"{result['runs'][0]['steps']:,} steps" in page.text
    violated = [law for law, state in result["runs"][0]["laws"].items() if state == "violated"]
    assert violated
    assert all(law in page.text for law in violated)


def test_what_a_campaign_reached(run_cli, tmp_path):
    _, out, _ = run_cli("fuzz", "slot_pool", "--target", "pool", "--time", "1s", "--json")
    (tmp_path / "fuzz.json").write_text(out)
    run_cli("report", "fuzz.json", "-o", "page.html")
    page = Page((tmp_path / "page.html").read_text())
    for goal, count in json.loads(out)["runs"][0]["reach"].items():
        assert f"{goal} {count:,} " in page.text
    assert "holds 0 findings" in page.text


def test_a_score_of_the_least_shape(run_cli, tmp_path):
    (tmp_path / "score.json").write_text(json.dumps(PLAIN_SCORE))
    code, out, _ = run_cli("report", "score.json", "-o", "page.html")
    assert code == 0
    assert "a score" in out
    page = Page((tmp_path / "page.html").read_text())
    assert "1 of 2 faults caught" in page.text
    assert "1,234" in page.text
    assert page.text.index("kv-b") < page.text.index("kv-a")
    assert len(page.of_class("missed")) == 1


def test_a_score_as_the_command_prints_it(run_cli, tmp_path):
    arguments = (
        "--contract",
        "slot_pool",
        "--profile",
        "quick",
        "--seed",
        "0",
        "--fault",
        "pool-occupy-toggles",
        "--thorough",
    )
    code, out, err = run_cli("score", *arguments, "--json")
    assert code == 0, err
    (tmp_path / "score.json").write_text(out)
    assert run_cli("report", "score.json", "-o", "page.html")[0] == 0
    page = Page((tmp_path / "page.html").read_text())
    for driver in ("explore", "hypothesis", "random"):
        assert f"{driver}, steps" in page.text
    assert len(page.of_class("first")) == 1
    assert "reports it" in [attributes.get("title") for attributes in page.of_class("first")]


def test_a_folder_of_a_campaign_is_that_campaign(run_cli, tmp_path):
    run_cli("fuzz", "slot_pool", "--target", "pool", "--shards", "1", "--dir", tmp_path / "nightly")
    whole = run_cli("report", "nightly", "-o", "whole.html")[1]
    part = run_cli("report", "nightly/corpus", "-o", "whole.html")[1]
    assert whole == part
    assert "it is part of the one in nightly" in run_cli("status", "nightly/corpus")[2]
    (tmp_path / "nightly/corpus").rename(tmp_path / "corpus")
    code, _, said = run_cli("report", "corpus")
    assert code == 2
    assert "no finding among its 7 traces and no status.json in it; give the directory of --dir" in said
