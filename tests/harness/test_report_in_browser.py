"""Pages of `report` as people see them: contrast, and how they work in a browser."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from pages import PLAIN_SCORE
from places import ROOT

from kvlockstep.core.trace import load_trace

TEMPLATES = ROOT / "harness" / "templates"


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
