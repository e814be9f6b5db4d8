"""`report`: pages of findings, campaigns and scores; what they say, and that they work in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from places import ROOT
from watched import watched

from kvlockstep.core.trace import Trace, load_trace, save_trace
from kvlockstep.core.watchdog import Watchdog
from kvlockstep.drivers.episode import Outcome, run_ops
from kvlockstep.drivers.random_walk import run_episode
from kvlockstep.models.core.op import Op
from kvlockstep.models.registry import MODELS, model_of
from kvlockstep.properties.kv_manager import laws
from kvlockstep.show.finding_page import _wrong, finding_page
from kvlockstep.show.observe import Observed, differences_of_law, observe
from kvlockstep.show.script import script_of
from kvlockstep.targets import resolve

TEMPLATES = ROOT / "harness" / "templates"
FAULTS = {
    "slot_pool": "pool-occupy-toggles",
    "slot_prefix_cache": "prefix-evicts-interior",
    "block_stack": "stack-double-release",
    "radix_cache": "radix-split-doubles",
    "block_pool": "bp-hash-trusted",
    "paged_cache": "paged-evicts-live",
    "kv_store": "store-skips-values",
    "decode_graphs": "graph-table-by-value",
    "kv_streams": "streams-no-wait",
    "kv_tier": "tier-evicts-pinned",
    "kv_manager": "kv-fork-no-copy",
    "kv_scheduler": "sched-preempt-keeps",
    "kv_index": "index-answers-remembered",
    "slot_mapping": "map-tail-kept",
    "kv_write": "write-dense-tokens",
    "paged_alloc": "palloc-held-page",
}
# These hold no slots.
WITHOUT_GRID = {"kv_index", "kv_write", "slot_mapping"}
VOID = {"meta", "input", "line", "polyline", "br"}

MANAGERS = """
import os, time
from kvlockstep.reference.kv_manager import KVManager

class Dies(KVManager):
    def append(self, rid, token):
        os.kill(os.getpid(), 9)

class Hangs(KVManager):
    def append(self, rid, token):
        while True:
            time.sleep(0.01)

class Sneers(KVManager):
    def append(self, rid, token):
        raise KeyError("</script><script>alert(1)</script>")
"""

STEPS = (
    Op("admit", request="r0", tokens=[0], extra_key=None, n=1),
    Op("forward", accept=None, abort=[], reverse=None),
    Op("decode", request="r0", token=1, drafts=[]),
)


@pytest.fixture
def managers(tmp_path, monkeypatch):
    (tmp_path / "sad_managers.py").write_text(MANAGERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sad_managers", raising=False)


@pytest.fixture
def finding(run_cli, tmp_path):
    """The trace file of a fork that does not copy."""
    forward = Op("forward", accept=None, abort=[], reverse=None)
    ops = [
        Op("admit", request="r0", tokens=[0], extra_key=None, n=1),
        forward,
        Op("fork", request="r0", child="r1"),
        Op("decode", request="r0", token=1, drafts=[]),
        forward,
        Op("decode", request="r1", token=0, drafts=[]),
        forward,
    ]
    target, model = resolve("kv_manager", "fault:kv-fork-no-copy"), model_of("kv_manager")
    scope = model.scope_type.from_json({"blocks": 1, "block_size": 2, "live": 2, "max_tokens": 2})
    trace = watched(run_ops, model, target.factory, scope, ops)
    assert trace is not None
    return save_trace(trace.but(target=target.name), tmp_path / ".kvlockstep/failures")


class Page(HTMLParser):
    """Tags with their attributes; fails on tags that are not closed in order, and on anything from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.tags.append((tag, values))
        assert tag not in ("link", "img", "base")
        if tag == "iframe":
            Page(values["srcdoc"])
        for name in ("src", "href"):
            assert (values.get(name) or "#").startswith(("#", "data:"))

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in (attributes.get("class") or "").split()]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def failing_trace(contract: str) -> Trace:
    """The shortest of a few failing episodes, not shrunk."""
    target = resolve(contract, f"fault:{FAULTS[contract]}")
    failures = []
    with Watchdog(5.0).watching() as watchdog:
        for episode in range(2000):
            failure = run_episode(model_of(contract), target.factory, 0, episode, watchdog, Outcome("random"))
            failures += [failure] if failure is not None else []
            if len(failures) == 8:
                break
    return min(failures, key=lambda trace: len(trace.ops)).but(target=target.name)


@pytest.mark.parametrize("contract", list(MODELS))
def test_a_finding_and_a_script_of_every_contract(run_cli, tmp_path, contract):
    path = save_trace(failing_trace(contract), tmp_path)
    trace = load_trace(path)
    code, out, err = run_cli("report", path, "-o", "page.html")
    assert (code, err) == (0, "")
    assert f"page.html: a finding of {len(trace.ops)} steps" in out
    page = Page((tmp_path / "page.html").read_text())
    assert len(page.of_class("moment")) == len(trace.ops) + 1
    assert trace.message in page.text
    assert trace.law in page.text
    assert f"kvlockstep replay {path} --target {trace.target}" in page.text
    assert "seen:" in page.text
    steps = {attributes.get("data-step") for tag, attributes in page.tags if tag == "td" and "data-step" in attributes}
    assert steps == (set() if contract in WITHOUT_GRID else {str(n) for n in range(len(trace.ops) + 1)})
    with pytest.raises(AssertionError, match=trace.law):
        exec(compile(script_of(trace), "again.py", "exec"), {})


def test_the_two_values_stand_side_by_side(finding):
    trace = load_trace(finding)
    (side,) = observe(resolve("kv_manager", trace.target), trace).differences
    assert f"holds {side.seen}, not {side.wanted}:" in trace.message


def test_what_a_step_changed_is_marked(run_cli, finding, tmp_path):
    run_cli("report", finding, "-o", "page.html")
    text = (tmp_path / "page.html").read_text()
    number = next(n for n, op in enumerate(load_trace(finding).ops, 1) if op.name == "decode")
    article = re.search(rf'<article class="moment" id="step-{number}">.*?</article>', text, re.DOTALL)
    assert article is not None
    requests = article[0].partition("counters")[0]
    rows = re.findall(r'<tr( class="changed")?><th scope="row">(\w+)</th>', requests)
    assert rows == [(' class="changed"', "r0"), ("", "r1")] * 2


def test_the_slot_that_is_wrong_is_marked(run_cli, finding, tmp_path):
    run_cli("report", finding, "-o", "page.html")
    (wrong,) = Page((tmp_path / "page.html").read_text()).of_class("wrong")
    trace = load_trace(finding)
    slot = re.search(r"slot (\d+)", trace.message)[1]
    assert wrong["data-step"] == str(len(trace.ops))
    assert wrong["title"].startswith(f"{slot} of block")


LEAKS = """
from kvlockstep.reference.kv_manager import KVManager

class Leaks(KVManager):
    def avail(self):
        return super().avail() + (self.block_size if self._live else 0)
"""


def test_slots_of_a_block_that_is_wrong_are_marked(run_cli, tmp_path):
    (tmp_path / "leaking.py").write_text(LEAKS)
    run_cli("check", "kv_manager", "--target", "leaking.py:Leaks")
    (trace,) = (tmp_path / ".kvlockstep/failures").iterdir()
    message = load_trace(trace).message
    assert re.search(r"counted twice, in block \d+$", message), message
    run_cli("report", trace, "--target", "leaking.py:Leaks", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    size = load_trace(trace).scope.block_size
    assert len(Page(page).of_class("wrong")) == size
    assert "Rule 8: <code>avail</code> plus" in page


@pytest.mark.parametrize(
    ("message", "unit", "marked"),
    [
        ("slot 3 of block 1 (r0 position 2) is free", "slot", {3}),
        ("slots 2 and 5 are free", "slot", {2, 5}),
        ("slots [2, 3] of blocks [1] are in the free list", "slot", {2, 3}),
        ("1 slot counted twice, in block 2", "slot", {4, 5}),
        ("4 slots leaked, in blocks 0 and 2", "slot", {0, 1, 4, 5}),
        ("1 slot leaked, in some of blocks 0 and 2", "slot", set()),
        ("2 blocks lost: block 7", "block", {7}),
    ],
)
def test_what_a_message_names_is_marked(message, unit, marked):
    assert _wrong(unit, 2, Observed(law="accounting", message=message)) == marked


def test_slots_show_who_holds_them(finding):
    trace = load_trace(finding)
    observed = observe(resolve("kv_manager", trace.target), trace)
    held = [{slot: cell.holders for slot, cell in m.picture.cells.items() if cell.holders} for m in observed.steps]
    forks = next(i for i, op in enumerate(trace.ops) if op.name == "fork")
    assert all(holders == ("r0",) for holders in held[forks - 1].values())
    assert ("r0", "r1") in held[forks].values()
    assert any(cell.references == 2 for cell in observed.steps[forks].picture.cells.values())


VIOLATIONS = {
    "no_aliasing": (["r0 position 3", "r1 position 1"], 3, 2),
    "hit_bounds": (4, 4),
    "eviction_safety": ([4, 9], {2}, 2, {"r0": [4, 5]}, 1),
    "no_double_free": ([1, 1, 2], 2),
    "accounting": (3, 4, 8),
    "leak_freedom": (7, 0, 8, []),
    "table_limit": ("r0", 4, 3, 6),
    "conservation": ({0, 1, 2}, 4, 2),
    "free_count": (4, 4, "r0", {1}, 1),
    "eviction_complete": (3, 4, 8),
    "reset_complete": (8, 7, 8),
    "admission_honesty": (2, 3, "an admission"),
    "coverage": (2, 3),
    "atomicity": (4, 3, "a fork", "avail"),
    "purity": (4, 3, "avail"),
}


@pytest.mark.parametrize("law", [law for law in laws.LAWS if law.id in VIOLATIONS], ids=lambda law: law.id)
def test_every_law_of_a_manager_shows_what_was_seen_and_what_had_to_be(law):
    import inspect  # noqa: PLC0415

    observed = VIOLATIONS[law.id]
    assert law.check(*observed) is not None
    given = inspect.signature(law.check).bind(*observed).arguments
    (side,) = differences_of_law(law.id, given)
    assert side.seen
    assert side.wanted
    assert side.seen != side.wanted


def test_a_law_without_a_comparison_shows_what_it_looked_at():
    assert [side.what for side in differences_of_law("new", {"a": 1, "b": 2})] == ["a", "b"]


def test_looking_does_not_change_what_happens(run_cli, tmp_path):
    run_cli("check", "kv_manager", "--target", "fault:kv-lazy-finish", "--driver", "random")
    trace = load_trace(next((tmp_path / ".kvlockstep/failures").glob("*.jsonl")))
    observed = observe(resolve("kv_manager", trace.target), trace)
    assert (observed.law, observed.message) == (trace.law, trace.message)


def test_the_script_fails_while_the_defect_is_there(run_cli, finding, tmp_path):
    trace = load_trace(finding)
    code, out, _ = run_cli("report", finding, "-o", "again.py")
    assert code == 0
    assert f"a script of {len(trace.ops)} steps" in out
    done = subprocess.run([sys.executable, "again.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{trace.law}: {trace.message}" in done.stderr
    assert re.search(r'again.py", line \d+, in <module>\n *step\(\'forward\'', done.stderr)

    run_cli("report", finding, "--target", "reference", "-o", "fixed.py")
    done = subprocess.run([sys.executable, "fixed.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_no_longer_fails_is_said_not_to(run_cli, finding, tmp_path):
    code, _, _ = run_cli("report", finding, "--target", "reference", "-o", "page.html")
    assert code == 0
    assert "It did not repeat when this page was made" in Page((tmp_path / "page.html").read_text()).text


def sad_trace(target: str, law: str) -> Trace:
    scope = model_of("kv_manager").scope_type.from_json({"blocks": 2, "block_size": 1, "live": 1, "max_tokens": 2})
    return Trace("kv_manager", scope, STEPS, target=target, law=law, message="it is gone")


def test_a_target_that_dies_still_gets_its_page(managers):
    trace = sad_trace("sad_managers:Dies", "error_contract")
    observed = observe(resolve("kv_manager", trace.target), trace, step_seconds=1.0)
    assert observed.law == "error_contract"
    assert "SIGKILL" in observed.details[0]
    assert [moment.op for moment in observed.steps] == [str(op) for op in STEPS]
    assert observed.steps[1].picture.cells
    page = Page(finding_page(trace, resolve("kv_manager", trace.target)))
    assert "SIGKILL" in page.text
    assert len(page.of_class("moment")) == 4


def test_a_target_that_hangs_is_cut_off(managers):
    trace = sad_trace("sad_managers:Hangs", "termination")
    observed = observe(resolve("kv_manager", trace.target), trace, step_seconds=0.4)
    assert observed.law == "termination"
    assert observed.steps[1].picture.cells


def test_what_a_target_says_is_text_and_not_markup(managers):
    trace = sad_trace("sad_managers:Sneers", "error_contract")
    text = finding_page(trace, resolve("kv_manager", trace.target))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


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


PLAIN_SCORE = {
    "caught": 1,
    "total": 2,
    "faults": [
        {
            **{"id": "kv-a", "contract": "kv_manager", "caught": True, "law": "accounting", "driver": "random"},
            **{"steps": 1234, "trace_length": 3, "seconds": 0.5},
        },
        {
            **{"id": "kv-b", "contract": "kv_manager", "caught": False, "law": None, "driver": None},
            **{"steps": None, "trace_length": None, "seconds": 2.0},
        },
    ],
    "clean": [{"contract": "kv_manager", "verdict": "holds"}],
}


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch.jsonl",), "cannot read nosuch.jsonl: No such file"),
        (("empty",), "empty: no trace and no status.json in it"),
        (("words.txt",), "not JSON"),
        (("list.json",), "not a kvlockstep trace"),
        (("other.json",), "neither a score nor the results of a run"),
        (("half.json",), "not the output of `kvlockstep score --json`: look at total, clean"),
        (("bad.json",), "bad.json: malformed results"),
        (("half.json", "-o", "nowhere/page.html"), "there is no directory nowhere"),
        (("half.json", "-o", "folder.html"), "Is a directory"),
        (("half.json", "-o", "page.htm"), "-o page.htm: give a name that ends in .html"),
        (("half.json", "-o", "half.svg"), "an output that ends in .py or .svg is for traces"),
        (("half.json", "--target", "reference"), "--target is for traces"),
        (("nameless.jsonl",), "names no target; give one with --target"),
        (("nameless.jsonl", "--target", "nosuch"), "unknown target 'nosuch'"),
    ],
)
def test_bad_input(run_cli, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.txt").write_text("hello\n")
    (tmp_path / "list.json").write_text("[1]\n")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "half.json").write_text(json.dumps({"faults": [], "caught": 0}))
    (tmp_path / "bad.json").write_text(json.dumps({"runs": [{"steps": "many"}]}))
    (tmp_path / "folder.html").mkdir()
    if arguments == ("half.json", "-o", "folder.html"):
        (tmp_path / "half.json").write_text(json.dumps(PLAIN_SCORE))
    save_trace(sad_trace("", "accounting"), tmp_path).rename(tmp_path / "nameless.jsonl")
    code, out, err = run_cli("report", *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not out


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme):
    style = (TEMPLATES / "page.css").read_text()
    names = dict(re.findall(r"--([\w-]+): (#\w+)", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    pairs = [("ink", name) for name in ("ground", "panel", "mark", "cached", *(f"h{i}" for i in range(10)))]
    pairs += [("quiet", "ground"), ("quiet", "panel"), ("bad", "ground")]
    pairs += [(tone, f"{tone}-ground") for tone in ("bad", "good", "warn")]
    for text, behind in pairs:
        dim, bright = sorted((luminance(names[text]), luminance(names[behind])))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, behind)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium with a log of its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def show(browser, path: Path, width: int, height: int, scheme: str) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_feature]})
    browser.get(path.as_uri())


def shown_steps(browser) -> list[str]:
    script = "return [...document.querySelectorAll('.moment')].filter(m => m.offsetParent).map(m => m.id)"
    return browser.execute_script(script)


def test_a_click_through_the_steps(run_cli, finding, browser, tmp_path):
    from selenium.webdriver.common.action_chains import ActionChains  # noqa: PLC0415
    from selenium.webdriver.common.by import By  # noqa: PLC0415
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    run_cli("report", finding, "-o", "page.html")
    last = len(load_trace(finding).ops)
    show(browser, tmp_path / "page.html", 1100, 900, "light")

    def press(key: str) -> None:
        ActionChains(browser).send_keys(key).perform()

    assert shown_steps(browser) == [f"step-{last}"]
    press(Keys.ARROW_LEFT)
    assert shown_steps(browser) == [f"step-{last - 1}"]
    press(Keys.HOME)
    assert shown_steps(browser) == ["step-0"]
    press(Keys.ARROW_LEFT)
    assert shown_steps(browser) == ["step-0"]
    press(Keys.ARROW_RIGHT)
    assert shown_steps(browser) == ["step-1"]
    assert browser.find_element(By.ID, "said").text == f"step 1 of {last}"
    press(Keys.END)
    assert shown_steps(browser) == [f"step-{last}"]
    browser.find_element(By.ID, "back").click()
    assert shown_steps(browser) == [f"step-{last - 1}"]
    browser.find_element(By.CSS_SELECTOR, ".steps [data-go='2']").click()
    assert shown_steps(browser) == ["step-2"]
    assert browser.find_element(By.CSS_SELECTOR, ".steps [aria-current]").text.startswith("2. ")
    browser.find_element(By.CSS_SELECTOR, ".grid tbody td[data-step='3']").click()
    assert shown_steps(browser) == ["step-3"]
    current = browser.find_elements(By.CSS_SELECTOR, ".grid .current")
    assert {cell.get_attribute("data-step") for cell in current} == {"3"}
    scrub = browser.find_element(By.ID, "scrub")
    scrub.send_keys(Keys.ARROW_RIGHT)
    assert shown_steps(browser) == ["step-4"]
    for _ in range(40):
        if browser.switch_to.active_element.get_attribute("data-go") == "1":
            break
        press(Keys.TAB)
    press(Keys.ENTER)
    assert shown_steps(browser) == ["step-1"]
    browser.get(f"{(tmp_path / 'page.html').as_uri()}#step-2")
    browser.refresh()
    assert shown_steps(browser) == ["step-2"]
    assert browser.get_log("browser") == []


def test_pages_fit_a_phone_in_the_dark_and_ask_nobody(run_cli, finding, browser, tmp_path):
    run_cli("report", finding, "-o", "finding.html")
    run_cli("report", finding.parent, "-o", "campaign.html")
    (tmp_path / "score.json").write_text(json.dumps(PLAIN_SCORE))
    run_cli("report", "score.json", "-o", "score.html")
    for name in ("finding", "campaign", "score"):
        pictures = []
        for width, scheme in ((390, "light"), (390, "dark"), (1100, "dark")):
            show(browser, tmp_path / f"{name}.html", width, 800, scheme)
            inside, outside = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert outside == width, name
            assert inside <= outside, name
            ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 60) == (scheme == "dark")
            pictures.append(browser.get_screenshot_as_png())
        assert all(len(picture) > 4000 for picture in pictures)
        assert all(one != other for one, other in pairwise(pictures))
    requests = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [r["params"]["request"]["url"] for r in requests if r["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert len(urls) >= 9


def test_a_trace_becomes_a_picture(run_cli, finding, tmp_path):
    code, out, _ = run_cli("report", finding, "-o", "finding.svg")
    assert code == 0
    assert f"a picture of {len(load_trace(finding).ops)} steps" in out
    picture = ElementTree.parse(tmp_path / "finding.svg").getroot()
    words = "".join(picture.itertext()).replace("\xa0", " ")
    assert "VIOLATED write_isolation" in words
    assert "prefers-color-scheme: dark" in words


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


def test_an_output_of_no_known_kind_is_refused(run_cli, finding, tmp_path):
    code, _, said = run_cli("report", finding, "-o", "page.pdf")
    assert code == 2
    assert "-o page.pdf: give a name that ends in .html (a page), .svg (a picture of a trace), .py (a script" in said
    assert not (tmp_path / "page.pdf").exists()
