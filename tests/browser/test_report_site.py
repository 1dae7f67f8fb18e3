"""The pages of ``output/report/`` in a real browser, from ``file://``: all but the gallery and the votes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.keys import Keys

from imageevalkit.jobs.plan import ReportOrder
from imageevalkit.report.__main__ import make_report
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Metric
from tests.support.browser import Browser, browser, needs_axe, needs_browser
from tests.support.cells import PPOCR, QWEN, Made, write_cell, write_items

pytestmark = needs_browser

HOSTILE = "<img src=x onerror='window.hacked=1'>\u202egnp"
LONG = "m" * 200
REASON = "policy says no <b>never</b> " + "y" * 10_000
COLOURS = ("red", "green", "blue", "a colour with a very long name that has no end in sight")
MODELS = ["good", "org/模型 #2", HOSTILE, LONG, "run@1000", "run@2000"]
PLACES = (
    "", "#/benchmark/text", "#/benchmark/text?chart=radar", "#/cell/good/text", "#/cell/lacking/two%20judges",
    "#/tradeoffs", "#/cost", "#/compare", "#/no/such",
)  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("site")
    output = folder / "out put #1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(output))
        _write_cells()
        make_report(None, ReportOrder([], sort_by=["text", "two judges"]))
    with browser(folder, output / "report/index.html") as opened:
        yield opened


def _write_cells() -> None:
    """Six models, the second the best, the first short of an item on one benchmark; and one without a result."""
    for n, model in enumerate(MODELS):
        value = (0.5, 0.75, 0.25, 0.35, 0.4, 0.45)[n]
        items = [Made(f"images/{p}_1", f"prompt {p}", value=value) for p in range(3)]
        metrics = {"accuracy": Metric(value, 300, (value - 0.05, value + 0.05))}
        metrics |= {
            f"colour/{name}": Metric(value - 0.01, 75, (value - 0.1, value + 0.1)) for name in COLOURS
        }
        write_cell(model, "text", items, metrics)
        if model == "good":
            items[0] = items[0]._replace(outcome="refused", error=("Refused", REASON))
        write_cell(model, "two judges", items, {"accuracy": Metric(80 * value, 3, None, 100)}, evaluator=QWEN)
    write_items(Cell("lacking", "two judges"), [Made("images/0_1", "prompt 0")], evaluator=PPOCR)


def _models(page: Browser, region: str) -> list[str]:
    return page.texts(f"[aria-label='{region}'] tbody th")


def test_every_page_opens_without_a_console_message_or_a_request(page: Browser) -> None:
    page.console(), page.requests()
    titles = []
    for place in PLACES:
        page.open(place)
        titles.append(page.driver.title)
    assert titles == [
        *("Leaderboard · ImageEvalKit", "text · ImageEvalKit", "text · ImageEvalKit"),
        *("good · text · ImageEvalKit", "lacking · two judges · ImageEvalKit", "Trade-offs · ImageEvalKit"),
        *("Cost · ImageEvalKit", "Compare · ImageEvalKit", "Page not found. · ImageEvalKit"),
    ]
    assert page.console() == []
    asked = page.requests()
    assert any(url.endswith("page.js") for url in asked)
    site = page.file.parent.as_uri()
    assert [url for url in asked if not url.startswith(site)] == []


def test_nothing_but_the_page_s_own_script_runs(page: Browser) -> None:
    page.open()
    page.driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert page.driver.execute_script("return window.ran") is None
    assert any("Content Security Policy" in message for message in page.console())


def test_models_are_sorted_by_a_heading_and_the_address_says_so(page: Browser) -> None:
    page.open()
    first = _models(page, "Leaderboard")
    assert first[0] == "org/模型 #2", "the leaderboard's order"
    heading = "[aria-label='Leaderboard'] thead th:nth-child(2)"
    assert page.one(heading).text.startswith("Mean of 2 benchmarks")
    page.one(f"{heading} button").click()
    assert page.one(heading).get_attribute("aria-sort") == "descending"
    page.one(f"{heading} button").click()
    rising = _models(page, "Leaderboard")
    assert page.one(heading).get_attribute("aria-sort") == "ascending"
    # one of them has not a whole score on each benchmark
    assert rising[-2:] == ["good", "lacking"], "what has no number is neither best nor worst"
    assert rising[-3] == "org/模型 #2"
    assert page.address() == "#/?sort=mean"
    page.one(".switch button:last-child").click()
    assert _models(page, "Leaderboard") == rising
    assert page.texts("[aria-label='Leaderboard'] td:nth-child(3)")[-3] == "75.0 a", "percent of the scale"
    assert page.address() == "#/?sort=mean&view=heat"
    page.open(page.address())
    assert _models(page, "Leaderboard") == rising


def test_the_first_page_has_ranked_bars_and_images(page: Browser) -> None:
    page.open()
    choice = "[aria-label*='intervals']"
    assert "text" in str(page.one(choice).get_attribute("aria-label"))
    assert _drawn(page, choice)
    page.wait(lambda: page.all(".shots img"))
    shown = page.texts(".shots li")
    assert len(shown) == 6 and "org/模型 #2" in shown and HOSTILE in shown


def test_a_score_that_is_not_whole_shows_its_state_in_place_of_a_number(page: Browser) -> None:
    page.open()
    row = next(row for row in page.texts("[aria-label='Leaderboard'] tbody tr") if row.startswith("good"))
    assert "0.5000" in row and "incomplete 2/3" in row and "40.00" not in row
    text = page.one("main").text
    assert "Withheld scores" in text and "Without a result" in text
    assert "lacking · two judges" in text


def test_chosen_models_stand_side_by_side_and_are_in_the_address(page: Browser) -> None:
    page.open(f"#/benchmark/text?models=good;{quote('org/模型 #2')}")
    heads = "[aria-label$=': Headline'] thead th"
    assert page.texts(heads) == ["Metric", "org/模型 #2", "good"]
    page.all(".models input")[0].click()
    page.wait(lambda: page.texts(heads) == ["Metric", "good"])
    assert "%23" not in page.address() and "good" in page.address()
    page.open(page.address())
    assert [box.is_selected() for box in page.all(".models input")].count(True) == 1
    shown = page.texts("[aria-label$=': colour'] tbody th")
    assert [name.partition("\n")[0] for name in shown] == list(COLOURS)


def test_a_breakdown_is_a_chart_with_its_table(page: Browser) -> None:
    page.open("#/benchmark/text?models=good")
    chart = ".chart[aria-label*=': colour']"
    assert "table" in str(page.one(chart).get_attribute("aria-label"))
    drawn = _drawn(page, chart)
    assert "0.49" in page.texts("[aria-label$=': colour'] tbody tr")[0]
    page.choose(".choice select", "radar (3 to 12 metrics)")
    assert _drawn(page, chart) != drawn
    assert page.address().endswith("chart=radar")


def _drawn(page: Browser, chart: str) -> str:
    """The chart, once it is seen."""
    page.driver.execute_script("arguments[0].scrollIntoView()", page.one(chart))
    page.wait(lambda: page.all(f"{chart} svg"))
    return str(page.one(f"{chart} svg").get_attribute("innerHTML"))


def test_a_failure_leads_to_its_image_in_the_gallery(page: Browser) -> None:
    page.open("#/cell/good/two%20judges")
    row = page.one("[aria-label='Failures'] tbody tr")
    assert "policy says no <b>never</b>" in row.text
    cut = len(row.text)
    assert cut < 250
    row.find_element("css selector", ".more").click()
    page.wait(lambda: len(page.one("[aria-label='Failures'] tbody tr").text) > cut)
    page.one(".item").click()
    page.wait(lambda: page.address().startswith("#/gallery/two%20judges"))
    assert "item=images%2F0_1" in page.address() and "model=good" in page.address()


def test_two_models_are_compared_by_all_metrics(page: Browser) -> None:
    page.open(f"#/compare?a=good&b={quote('org/模型 #2')}")
    rows = page.texts("[aria-label='text@ppocr-v4'] tbody tr")
    assert len(rows) == 1 + len(COLOURS)
    assert "+0.2500" in rows[0] and "difference · p " in rows[0]
    page.one(".choices button").click()
    page.wait(lambda: "−0.2500" in page.texts("[aria-label='text@ppocr-v4'] tbody tr")[0])


def test_language_and_theme_are_kept(page: Browser) -> None:
    page.open()
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = page.driver.execute_script(colour)
    page.choose(".settings label:first-child select", "中文")
    page.choose(".settings label:last-child select", "深色")
    page.open("#/cost")
    assert page.one("h1").text == "成本" and page.driver.title.startswith("成本")
    assert page.one("html").get_attribute("lang") == "zh-CN"
    assert page.driver.execute_script(colour) != light
    page.choose(".settings label:first-child select", "English")
    page.choose(".settings label:last-child select", "System")
    assert page.one("h1").text == "Cost"


def test_a_phone_s_screen_does_not_scroll_aside(page: Browser) -> None:
    page.width(390)
    wide = []
    for place in PLACES:
        page.open(place)
        if page.driver.execute_script("return document.documentElement.scrollWidth") > 390:
            wide.append(place)
    page.width(1280)
    assert wide == []


def test_keyboard_and_back(page: Browser) -> None:
    page.open()
    page.press(Keys.TAB)
    assert page.focused() == "Skip to content"
    page.press(Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("id") == "main"
    link = page.one("nav a[href='#/cost']")
    link.send_keys(Keys.ENTER)
    page.wait(lambda: page.focused() == "Cost")
    assert page.one("nav [aria-current]").text == "Cost"
    page.driver.back()
    page.wait(lambda: page.focused() == "Leaderboard")
    assert page.driver.title == "Leaderboard · ImageEvalKit"
    page.one("nav a[href^='#/gallery/']").send_keys(Keys.ENTER)
    page.wait(lambda: page.driver.title.startswith("Gallery: text"))  # its heading comes with its data


def test_hostile_names_are_text_and_can_be_followed(page: Browser) -> None:
    page.open()
    names = _models(page, "Leaderboard")
    assert HOSTILE in names
    assert any(name.startswith("m" * 64) and "show all" in name for name in names)
    link = page.one("a[href^='#/cell/%3Cimg']")
    page.driver.execute_script("arguments[0].click()", link)
    page.wait(lambda: page.texts("h1")[0].startswith("<img"))
    assert page.driver.execute_script("return window.hacked") is None


@needs_axe
@pytest.mark.parametrize(("theme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_axe_finds_no_serious_fault(page: Browser, theme: str, rules: tuple[str, ...]) -> None:
    page.open()
    page.driver.execute_script("localStorage.setItem('theme', arguments[0])", theme)
    faults = {}
    for place in PLACES:
        page.open(place)
        if found := page.faults(*rules):
            faults[place] = found
    page.driver.execute_script("localStorage.removeItem('theme')")
    assert faults == {}, json.dumps(faults, indent=2)
