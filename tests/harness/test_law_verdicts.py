"""A law holds only if it was evaluated: what raises is an internal error, what never ran is inconclusive."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kvlockstep.core.profiles import profile_of
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.registry import MODELS
from kvlockstep.models.requests.request import Request, require_right
from kvlockstep.properties import slot_pool
from kvlockstep.properties.kv_manager import laws as kv_manager
from kvlockstep.properties.law import Law, LawError, Refused
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.runs.check import check, check_target
from kvlockstep.runs.results import law_verdicts
from kvlockstep.targets.registry import from_factory


def cannot_judge(*_observed):
    raise TypeError("no such field")


@pytest.fixture
def judge_by(monkeypatch):
    """Gives a contract's model another check of one of its laws."""

    def judge_by(law, check):
        monkeypatch.setitem(MODELS.imported, law.contract, MODELS[law.contract].judging_by(replace(law, check=check)))

    return judge_by


@pytest.mark.parametrize("law", [slot_pool.accounting, slot_pool.no_double_free], ids=lambda law: law.id)
def test_a_law_that_raises_is_an_internal_error_that_names_it(run_cli, judge_by, law):
    judge_by(law, cannot_judge)
    code, out, err = run_cli("check", "slot_pool", "--target", "pool")
    assert code == 4
    assert "HOLDS" not in out
    assert f"law {law.id} of slot_pool raised TypeError: no such field" in err


def test_also_a_law_of_kv_manager(run_cli, judge_by):
    judge_by(kv_manager.accounting, cannot_judge)
    code, _, err = run_cli("check", "kv_manager", "--target", "blocks")
    assert code == 4
    assert "law accounting of kv_manager raised TypeError" in err


def test_also_a_law_over_what_a_request_reads():
    cell = kv_manager.Cell(0, 0, 0, "nothing", "the KV of [0]", hit=True, own=True, writer=None)
    request = Request("r0", [0], None)
    law = replace(kv_manager.prefix_soundness, check=cannot_judge)
    with pytest.raises(LawError, match="prefix_soundness"):
        require_right(request, cell, (law,))


def test_a_law_that_raises_because_the_target_answers_oddly_is_the_targets_divergence(judge_by):
    class Odd(SlotPool):
        def alloc(self):
            super().alloc()
            return "slot"

    def adds_up(step):
        if step.op.name != "alloc" or isinstance(step.outcome, Refused):
            return None
        return "negative" if step.outcome + 1 < 0 else None

    judge_by(slot_pool.accounting, adds_up)
    report = check(Odd, contract="slot_pool", raise_on_failure=False)
    assert report.verdict == "violated"


def test_a_law_that_no_run_evaluated_makes_the_check_inconclusive(run_cli, tmp_path, monkeypatch):
    unused = replace(kv_manager.accounting, id="unused")
    monkeypatch.setattr(KVManagerModel, "laws", (*KVManagerModel.laws, unused))
    code, out, _ = run_cli("check", "kv_manager", "--target", "blocks", "--driver", "hypothesis", "--junit", "j.xml")
    assert code == 3
    assert "unused" in next(line for line in out.splitlines() if "never evaluated" in line)
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "j.xml").iter("testcase")}
    assert cases["unused"].find("failure").get("message") == "never evaluated: law unused"


def test_the_json_says_what_became_of_each_law_and_how_often_it_was_evaluated(run_cli):
    code, out, _ = run_cli("check", "kv_manager", "--target", "slots", "--driver", "hypothesis", "--json")
    assert code in (0, 3)
    report = json.loads(out)
    evaluated = Counter()
    for run in report["runs"]:
        evaluated.update(run["evaluated"])
    for law in KVManagerModel.laws_in_play(evaluated):
        verdicts = {run["laws"][law.id] for run in report["runs"]}
        if law.id in report["not_checked"]["kv_manager slots"]:
            assert verdicts == {"not_checked"}
        else:
            assert verdicts <= {"held", "not_evaluated"}
            assert ("held" in verdicts) == (evaluated[law.id] > 0)


def test_the_terminal_names_the_law_that_was_evaluated_least(run_cli):
    _, out, _ = run_cli("check", "slot_pool", "--target", "pool", "-v")
    assert "laws: 10 held, least evaluated:" in out


def test_a_manager_without_a_prefix_cache_has_no_prefix_to_be_sound(tmp_path):
    class Uncached(KVManager):
        prefix_cache = False

        def admit(self, rid, tokens, extra_key, n):
            return super().admit(rid, tokens, object(), n)

    uncached = from_factory("kv_manager", Uncached)
    target = check_target(uncached, profile_of("quick"), directory=tmp_path, drivers=("hypothesis",))
    assert target.not_checked["prefix_soundness"] == "the target declares no prefix_cache"


@pytest.mark.parametrize(
    ("evaluated", "not_checked", "violated", "verdict"),
    [
        ({"purity": 3}, {}, (), "held"),
        ({}, {}, (), "not_evaluated"),
        ({"purity": 0}, {}, (), "not_evaluated"),
        ({}, {"purity": "why"}, (), "not_checked"),
        ({"purity": 3}, {}, ("purity",), "violated"),
    ],
)
def test_the_four_verdicts_of_a_law(evaluated, not_checked, violated, verdict):
    assert law_verdicts("kv_manager", evaluated, not_checked, violated)["purity"] == verdict


def test_a_need_that_the_contract_does_not_have_is_an_error_of_the_declaration():
    with pytest.raises(ValueError, match=r"law x needs 'can_rest', which kv_manager does not have; did you mean"):
        Law("x", "kv_manager", "A statement.", lambda: None, needs=("can_rest",))
    with pytest.raises(ValueError, match="slot_pool does not have"):
        Law("x", "slot_pool", "A statement.", lambda: None, needs=("can_reset",))


def test_the_page_of_the_results_says_what_became_of_each_law(run_cli, tmp_path):
    _, out, _ = run_cli("check", "kv_manager", "--target", "slots", "--driver", "hypothesis", "--json")
    (tmp_path / "results.json").write_text(out)
    code, _, err = run_cli("report", "results.json")
    assert code == 0, err
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Laws</h2>" in page
    assert "not checked" in page
    assert "the target declares no event_listener" in page
