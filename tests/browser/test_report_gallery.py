"""The gallery and the voting page of ``output/report/`` in a real browser, from ``file://``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from imageevalkit.report.__main__ import main
from imageevalkit.store.cell import Cell
from imageevalkit.store.results import Metric
from tests.support.browser import Browser, browser, needs_axe, needs_browser
from tests.support.cells import PPOCR, QWEN, Made, write_cell
from tests.support.generation import generate

pytestmark = needs_browser

HOSTILE = "</script><img src=x onerror='window.hacked=true'><b>bold</b> prompt 3"
LONG = f"prompt 4 \u202egnp\u202c \x1b[2J {'y' * 10_000}"
OTHER = "org/模型 #2"
TEXT, JUDGES, EDITS = "#/gallery/text", "#/gallery/two%20judges", "#/gallery/x%20edits"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(folder / "out put #1"))
        for model, step in (("good", 0.0), (OTHER, 0.01)):
            items = [_item(p, k, step) for p in range(60) for k in (1, 2)]
            if step:
                items[0] = items[0]._replace(outcome="refused", error=("Refused", "policy says no"))
                items[1] = items[1]._replace(outcome="blank")
            cell = write_cell(model, "text", items, {"accuracy": Metric(0.5 + step, 120, (0.4, 0.6))})
            # the settings that the records name
            cell.fingerprints.write_text(json.dumps({"fingerprint": "f" * 12, "settings": {}}))
            _answer(cell)
        for model, evaluator, scale in (("good", PPOCR, 1), (OTHER, QWEN, 100)):
            items = [Made(f"images/p/{p}_1", f"prompt {p}", value=scale * p / 4) for p in range(1, 4)]
            metric = {"accuracy": Metric(scale * 0.5, 3, None, scale)}
            write_cell(model, "two judges", items, metric, evaluator=evaluator)
        for model in ("good", OTHER):
            generate(Upside(), Edits(), cell=Cell(model, "x edits"))
        main([])
    with browser(folder, folder / "out put #1/report/index.html") as opened:
        yield opened


class Edits:
    """Images to turn upside down: one of one picture, one of two."""

    dataset_name, dataset_task = "x edits", "edit"

    def __init__(self) -> None:
        wide, tall = (
            Image.radial_gradient("L").resize((300, 100)),
            Image.linear_gradient("L").resize((80, 160)),
        )
        lists: list[list[Any]] = [[wide, "turn it"], [tall, "turn this, not", wide]]
        self.data = [
            {"input_list": given, "seed": 0, "image_save_path": f"<MODEL_NAME>/x edits/images/{n}.png"}
            for n, given in enumerate(lists)
        ]


class Upside:
    """A model that turns its first picture."""

    def generate(self, given: Sequence[Any], seed: int = 42) -> Image.Image:
        return next(part for part in given if not isinstance(part, str)).rotate(180)


def _item(p: int, k: int, step: float) -> Made:
    prompt = {3: HOSTILE, 4: LONG}.get(p, f"prompt {p}")
    # the other model falls behind by one hundredth more with every prompt
    value = round(1 - p / 100 - step * p / 2, 4)
    keys = {"language": "zh" if p % 2 else "en"}
    return Made(f"images/p/{p:04}_{k}", prompt, value=value, keys=keys, read=f"read {p}", seed=42 + k)


def _answer(cell: Cell) -> None:
    """Three questions about each item, of which the second is answered wrongly."""
    scores = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    replies = []
    for score in scores:
        score["points"] = [{"values": {"accuracy": point}, "keys": {}} for point in (1.0, 0.0, 1.0)]
        for n, raw in enumerate(("yes, a cat", f"no {HOSTILE} \ud83d", "yes")):
            record = {"item": score["item"], "question": f"question {n}", "status": "ok", "raw": raw}
            replies.append(record | {"parsed": raw.split(",")[0].split()[0], "evaluator": PPOCR.id})
    cell.scores.write_text("".join(f"{json.dumps(score)}\n" for score in scores))
    cell.judgements.write_text("".join(f"{json.dumps(record)}\n" for record in replies))


def _go(page: Browser, place: str) -> None:
    """As a link goes there; the page is loaded where it is not, and draws ``place`` anew."""
    if not str(page.driver.current_url).startswith(f"{page.file.as_uri()}#"):
        page.open("#/no/such")
    for part in ("#/no/such", place):
        page.driver.execute_script("location.hash = arguments[0]", part)
        page.wait(lambda part=part: (page.texts("h1") == ["Page not found."]) == (part == "#/no/such"))


def _open(page: Browser, place: str) -> None:
    _go(page, place)
    page.wait(lambda: page.all(".g-row .g-caption, .g-empty"))


def _prompts(page: Browser) -> list[str]:
    """Returns the drawn prompts, from the first."""
    return page.texts(".g-row .g-prompt .g-text")


def _select(page: Browser, label: str) -> Select:
    found = [one for one in page.all(".g-choice") if one.text.startswith(label)]
    assert found, f"no choice named {label}"
    return Select(found[0].find_element("tag name", "select"))


def _choose(page: Browser, label: str, choice: str) -> None:
    _select(page, label).select_by_visible_text(choice)


def _counts(page: Browser, text: str) -> None:
    page.wait(lambda: page.texts(".g-count") == [text])


def _first(page: Browser, *prompts: str) -> None:
    page.wait(lambda: _prompts(page)[: len(prompts)] == [*prompts])


def _type(page: Browser, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


def _search(page: Browser, text: str) -> None:
    box = page.one(".g input[type=search]")
    box.clear()
    box.send_keys(text)


def _enlarged(page: Browser) -> list[str]:
    """Where the large pictures come from, once the best of each has loaded."""

    def sources() -> list[str]:
        script = (
            "return [...document.querySelectorAll('.g-stage img')].map((i) => i.naturalWidth ? i.src : '')"
        )
        found = list(page.driver.execute_script(script))
        return found if all(found) and len(page.all(".g-note")) == len(found) else []

    return list(page.wait(sources))


def _view(page: Browser, item: str, model: str = "good", more: str = "", place: str = TEXT) -> None:
    _go(page, f"{place}?item={item}&model={model}{more}")
    page.wait(lambda: page.all(".g-panel dl"))


def test_a_gallery_opens_without_a_console_message_or_a_request(page: Browser) -> None:
    page.console(), page.requests()
    page.open()
    page.one("nav a[href^='#/gallery']").click()
    page.wait(lambda: page.all(".g-row"))
    assert page.driver.title == "Gallery: text · ImageEvalKit"
    _view(page, "images/p/0001_1")
    assert page.console() == []
    output = page.file.parent.parent.as_uri()
    assert [url for url in page.requests() if not url.startswith(output)] == []


def test_search_filter_and_order(page: Browser) -> None:
    _open(page, TEXT)
    _search(page, "PROMPT 1")
    _counts(page, "15 of 60 prompts")
    _first(page, "prompt 1", "prompt 10")
    _choose(page, "language", "zh")
    _counts(page, "10 of 60 prompts")
    _first(page, "prompt 1", "prompt 11", "prompt 13")
    _choose(page, "Order", "largest difference between models")
    _first(page, "prompt 51", "prompt 41")
    _choose(page, "Order", "highest score first")
    _first(page, "prompt 1")
    _search(page, "0007_2")
    _counts(page, "1 of 60 prompts")
    assert _prompts(page) == ["prompt 7"]
    _search(page, "prompt 1 nothing")
    page.wait(lambda: page.all(".g-empty"))
    assert page.one(".g-empty").text == "No prompt matches. Clear filters"
    page.one(".g-empty button").click()
    _counts(page, "60 prompts")


def test_scores_of_two_evaluators_are_neither_averaged_nor_drawn_on_one_scale(page: Browser) -> None:
    _open(page, JUDGES)
    page.wait(lambda: len(page.all(".g-row:first-of-type .g-thumb")) == 2)
    assert page.texts(".g-row:first-of-type .g-score") == ["0.250", "25"]
    meters = page.all(".g-row:first-of-type .g-meter i")
    assert [one.get_attribute("style") for one in meters] == ["width: 25%;"] * 2

    def orders() -> list[str]:
        return [option.text for option in _select(page, "Order").options]

    assert "highest score first" not in orders()
    page.all(".g-models input")[0].click()
    page.wait(lambda: "highest score first" in orders())
    _choose(page, "Order", "highest score first")
    _first(page, "prompt 3")


def test_enlarging_shows_the_original_and_the_details(page: Browser) -> None:
    _open(page, TEXT)
    _choose(page, "Order", f"lowest of {OTHER} first")
    _first(page, "prompt 59")
    page.all(".g-row")[0].find_elements("css selector", ".g-thumb")[2].click()
    [source] = _enlarged(page)
    assert source.startswith("file:") and source.endswith(".png")
    # the panel is filled when the item's script has been read
    page.wait(lambda: "read 59" in page.texts(".g-panel")[0])
    assert "seed\n43" in page.texts(".g-panel")[0]
    page.press(Keys.ARROW_DOWN)
    page.wait(lambda: "read 58" in page.texts(".g-panel")[0])
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"))
    page.wait(lambda: page.focused().startswith(f"{OTHER}, images/p/0058_1"))


def test_wrong_answers_come_first_and_replies_are_text(page: Browser) -> None:
    _view(page, "images/p/0001_1")
    page.wait(lambda: page.all(".g-answers li"))
    assert page.texts(".g-answers .g-question") == ["question 1", "question 0", "question 2"]
    assert page.texts(".g-answers .g-sign") == ["✗", "✓", "✓"]
    assert HOSTILE in page.texts(".g-answers li")[0]
    assert "1 of 3 wrong" in page.texts(".g-panel")[0]
    assert page.driver.execute_script("return window.hacked") is None


def test_a_link_brings_back_the_whole_view_and_back_leads_out_of_it(page: Browser) -> None:
    _open(page, f"{TEXT}?q=prompt+1&key.language=zh&sort=gap&hide=good")
    _counts(page, "10 of 60 prompts")
    page.all(".g-models input")[0].click()
    _first(page, "prompt 51")
    page.one(".g-thumb").click()
    page.wait(lambda: page.all(".g-panel"))
    page.press("c")
    page.press("l")
    page.wait(lambda: page.all(".g-split"))
    page.press("+")
    page.wait(lambda: "zoom=1.4" in page.address())
    link = page.address()
    page.driver.back()
    page.wait(lambda: not page.all("dialog"))
    _counts(page, "10 of 60 prompts")
    page.open(link)
    page.wait(lambda: page.all(".g-split") and page.all(".g-zoom img"))
    assert page.texts(".g-stage figcaption span") == ["good", OTHER]
    assert "scale(1.4)" in str(page.one(".g-zoom").get_attribute("style"))
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("dialog"))
    _first(page, "prompt 51")


def test_one_file_holds_the_gallery(page: Browser, tmp_path: Path) -> None:
    alone = tmp_path / "alone.html"
    shutil.copyfile(page.file.parent.parent / "report.html", alone)
    single = Browser(page.driver, alone)
    _open(single, TEXT)
    _view(single, "images/p/0001_1")
    [source] = _enlarged(single)
    assert source.startswith("data:image/webp")
    assert single.texts(".g-answers .g-question")[0] == "question 1"
    page.console()


def test_an_edit_is_shown_beside_its_source(page: Browser) -> None:
    page.console()
    _open(page, EDITS)
    page.wait(lambda: len(page.all(".g-row:first-of-type .g-picture")) == 3)
    assert [text.splitlines()[0] for text in page.texts(".g-head > div")] == [
        "Prompt",
        "source",
        "good",
        OTHER,
    ]
    assert page.texts(".g-sources .g-caption") == ["source", "source 1", "source 2"]
    source, *results = [one.rect for one in page.all(".g-row:first-of-type .g-picture")]
    assert len(results) == 2, "the source of all models is there once"
    assert source["x"] + source["width"] <= results[0]["x"]
    page.wait(lambda: page.one(".g-sources .g-picture img").get_property("naturalWidth"))
    source = page.one(".g-sources .g-picture").rect
    assert source["width"] == pytest.approx(3 * source["height"], rel=0.05)
    page.driver.execute_script("document.querySelector('.g-sources a').focus()")
    page.press(Keys.ENTER)
    page.wait(lambda: page.texts(".g-stage figcaption") == ["source", "result"])
    assert [place.rpartition(".")[2] for place in _enlarged(page)] == ["webp", "png"]
    assert all(place.startswith("file:") and "/pictures/" not in place for place in _enlarged(page))
    before, after = [one.rect for one in page.all(".g-stage .g-frame")]
    assert before["x"] + before["width"] <= after["x"]
    assert before["width"] == pytest.approx(after["width"], abs=1)
    page.press(Keys.ARROW_DOWN)
    page.wait(lambda: page.texts(".g-stage figcaption") == ["source 1", "source 2", "result"])
    page.press(Keys.ESCAPE)
    assert page.console() == []


COMPARED = f"{TEXT}?item=images/p/0001_1&model=good&with=org/模型 %232"
PLACES = (
    *(TEXT, f"{TEXT}?item=images/p/0000_1&model=org/模型 %232", COMPARED, f"{COMPARED}&mode=slider", EDITS),
    *("#/vote", "#/vote?stage=vote", "#/vote?stage=end", "#/votes"),
)


NARROW = (TEXT, COMPARED, f"{EDITS}?item=images/1&model=good", "#/vote?stage=vote")


_SHOW = """
const [place, done] = arguments;
addEventListener("hashchange", () => requestAnimationFrame(() => requestAnimationFrame(done)), {once: true});
location.hash = place;
"""


def _loads(page: Browser) -> bool:
    text = page.texts("main")[0]
    return "Loading" in text or "加载中" in text


@needs_axe
@pytest.mark.parametrize(
    ("theme", "language", "width", "places", "rules"),
    [
        ("dark", "zh", 1280, PLACES, ()),
        # what is another in another theme, and where things lie in another way
        ("light", "en", 390, NARROW, ("color-contrast", "scrollable-region-focusable")),
    ],
)
def test_readable_in_both_themes_and_languages_wide_and_narrow(
    page: Browser, theme: str, language: str, width: int, places: Sequence[str], rules: Sequence[str]
) -> None:
    page.driver.execute_script(f"localStorage.theme = '{theme}'; localStorage.language = '{language}'")
    page.width(width)
    try:
        page.open()
        for place in places:
            page.driver.execute_async_script(_SHOW, place)
            page.wait(lambda: page.all("main h1") and not page.all(".g-wait") and not _loads(page))
            assert page.faults(*rules) == [], place
            wide = page.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, place
    finally:
        page.driver.execute_script("localStorage.theme = 'system'; localStorage.language = 'en'")
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.open()


def test_twenty_blind_votes_by_keys(page: Browser, tmp_path: Path) -> None:
    page.console()
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.open("#/vote?benchmarks=text%3Bx+edits&n=20")
    page.driver.execute_script("localStorage.clear()")
    page.open("#/vote?benchmarks=text%3Bx+edits&n=20")
    box = page.one(".g-vote input[required]")
    box.clear()
    box.send_keys("anna")
    page.one("button[type=submit]").click()
    for n in range(20):
        page.wait(lambda n=n: page.texts(".g-progress") == [f"{n} of 20"] and len(page.all("canvas")) > 1)
        html = page.driver.execute_script("return document.documentElement.outerHTML + document.title")
        assert "good" not in html
        assert "模型" not in html and "%E6%A8%A1" not in html
        _type(page, "120"[n % 3])
    page.wait(lambda: page.texts(".g-progress") == ["20 of 20"])
    assert page.texts(".g-empty") == ["Done. Thank you."]
    next(one for one in page.all(".g-votebar button") if one.text == "End and show names").click()
    page.wait(lambda: page.texts("h1") == ["Your votes"])
    assert set(page.texts("tbody th")) == {"good", OTHER}
    next(one for one in page.all("button") if one.text == "Save votes to a file").click()
    file = tmp_path / "votes-anna.json"
    page.wait(file.is_file)
    saved = json.loads(file.read_text())
    assert (saved["format"], saved["voter"]) == ("imageevalkit-votes/1", "anna")
    votes = saved["votes"]
    assert len(votes) == 20
    assert {vote["benchmark"] for vote in votes} == {"text", "x edits"}, "the least compared first"
    assert len({(vote["benchmark"], vote["item"]) for vote in votes}) == 20
    assert [vote["winner"] for vote in votes[:3]] == ["left", "right", "tie"]
    assert {(vote["left"], vote["right"]) for vote in votes} == {("good", OTHER), (OTHER, "good")}, (
        "by chance"
    )
    assert not {"images/p/0000_1", "images/p/0000_2"} & {vote["item"] for vote in votes}, "one has no image"
    assert all(vote["seconds"] >= 0 and vote["time"].endswith("Z") for vote in votes)
    _forget_and_load(page, file, tmp_path)
    assert page.console() == []


def _forget_and_load(page: Browser, file: Path, folder: Path) -> None:
    page.open("#/vote")
    assert page.texts(".g-files h2") == ["20 votes are stored in this browser."], "a new visit has them"
    next(one for one in page.all("button") if one.text == "Delete all votes").click()
    page.driver.switch_to.alert.accept()
    page.wait(lambda: page.texts(".g-files h2") == ["0 votes are stored in this browser."])
    bad = folder / "bad.json"
    bad.write_text(json.dumps({"format": "imageevalkit-votes/1", "voter": "b", "votes": [{"item": 3}]}))
    page.one("input[type=file]").send_keys(str(bad))
    page.wait(
        lambda: page.texts(".g-files [role=status]") == ["bad.json: vote 1 is invalid. Nothing was loaded."]
    )
    page.one("input[type=file]").send_keys(str(file))
    page.wait(lambda: page.texts(".g-files h2") == ["20 votes are stored in this browser."])


def test_what_votes_say_of_models_and_judges(page: Browser, tmp_path: Path) -> None:
    row = {"wins": 8, "losses": 2, "ties": 1}
    rows = [
        {"model": HOSTILE, "rating": 1612.4, "low": 1550.0, "high": 1700.0, **row},
        {"model": OTHER, "rating": 1388.0, "low": 1300.0, "high": 1450.0, **row},
    ]
    judge = {"evaluator": "ppocr-v4", "benchmark": "text", "metric": "accuracy"}
    votes = {
        "votes": 11,
        "files": ["anna.json"],
        "notes": ["a note"],
        "tables": [{"benchmark": "", "rows": rows}],
        "judges": [judge | {"agreement": 0.81, "low": 0.6, "high": 0.9, "n": 11}],
    }
    before, _, rest = page.file.read_text().partition('data-part="index">')
    index, _, after = rest.partition("</script>")
    data = json.dumps(json.loads(index) | {"votes": votes}).replace("<", "\\u003c")
    for name in ("page.js", "page.css"):
        shutil.copyfile(page.file.parent / name, tmp_path / name)
    (tmp_path / "index.html").write_text(f'{before}data-part="index">{data}</script>{after}')
    said = Browser(page.driver, tmp_path / "index.html")
    said.console()
    said.open("#/cost")  # the first page would load images, which this copy has not
    said.one("nav a[href='#/votes']").click()
    said.wait(lambda: said.all(".chart svg"))
    assert said.texts("tbody th") == [HOSTILE, OTHER, "ppocr-v4"]
    assert said.texts("tbody td")[:4] == ["1612 [1550, 1700]", "8", "2", "1"]
    assert said.texts("tbody tr:last-child td")[-4:] == ["text", "accuracy", "81 % [60, 90]", "11"]
    assert "a note" in said.one("main").text
    assert said.driver.execute_script("return window.hacked") is None
    assert said.console() == []
