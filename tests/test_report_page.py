"""``report.html`` in a real browser, from ``file://``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from imageevalkit.cell import Cell
from imageevalkit.cell.results import Metric
from imageevalkit.report.__main__ import main
from tests.support.cells import PPOCR, QWEN, Made, write_cell
from tests.support.generation import generate

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (apt-get install chromium-driver)",
)

HOSTILE = "</script><img src=x onerror='window.hacked=true'><b>bold</b> prompt 3"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1300,900",
)  # fmt: skip


class Page:
    """The report in a browser."""

    def __init__(self, driver: webdriver.Chrome, file: Path) -> None:
        self.driver = driver
        self.file = file

    def open(self, place: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(self.file.as_uri() + place)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def choose(self, label: str, choice: str) -> None:
        for element in self.all(".tools label"):
            if element.text.startswith(label):
                Select(element.find_element(By.TAG_NAME, "select")).select_by_visible_text(choice)
                return
        raise AssertionError(f"no choice named {label}")

    def choices(self, label: str) -> list[str]:
        for element in self.all(".tools label"):
            if element.text.startswith(label):
                options = Select(element.find_element(By.TAG_NAME, "select")).options
                return [option.text for option in options]
        raise AssertionError(f"no choice named {label}")

    def prompts(self) -> list[str]:
        return [element.text for element in self.all(".row .prompt-text")]

    def enlarged(self) -> str:
        """Where the large picture comes from, once it has loaded."""
        script = "const i = document.querySelector('.stage img'); return i && i.naturalWidth ? i.src : ''"
        return str(WebDriverWait(self.driver, 10).until(lambda d: d.execute_script(script)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(folder / "out put #1"))
        for model, step in (("good", 0.0), ("org/模型 #2", 0.01)):
            items = [_item(p, k, step) for p in range(60) for k in (1, 2)]
            if step:
                items[0] = items[0]._replace(outcome="refused", error=("Refused", "policy says no"))
                items[1] = items[1]._replace(outcome="blank")
            write_cell(model, "text", items, {"accuracy": Metric(0.5 + step, 120, (0.4, 0.6))})
        for model, evaluator, scale in (("good", PPOCR, 1), ("org/模型 #2", QWEN, 100)):
            items = [Made(f"images/p/{p}_1", f"prompt {p}", value=scale * p / 4) for p in range(1, 4)]
            metric = {"accuracy": Metric(scale * 0.5, 3, None, scale)}
            write_cell(model, "two judges", items, metric, evaluator=evaluator)
        for model in ("good", "org/模型 #2"):
            generate(Upside(), Edits(), cell=Cell(model, "x edits"))
        main([])
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            yield Page(driver, folder / "out put #1" / "report.html")
        finally:
            driver.quit()


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
    prompt = HOSTILE if p == 3 else f"prompt {p}"
    # model 2 falls behind by one hundredth more with every prompt
    value = round(1 - p / 100 - step * p / 2, 4)
    keys = {"language": "zh" if p % 2 else "en"}
    return Made(f"images/p/{p:04}_{k}", prompt, value=value, keys=keys, read=f"read {p}", seed=42 + k)


def test_leaderboard_then_gallery_without_a_console_message(page: Page) -> None:
    page.open()
    assert [row.text for row in page.all(".board tbody th")] == ["good", "org/模型 #2"]
    assert not page.all(".row")
    page.one("nav a[data-view=gallery-0]").click()
    assert 0 < len(page.all(".row")) < 60
    assert not page.one("#leaderboard").is_displayed()
    assert page.driver.get_log("browser") == []


def test_rows_are_added_while_scrolling(page: Page) -> None:
    page.open("#gallery-0")

    def scrolled(driver: webdriver.Chrome) -> bool:
        driver.execute_script("scrollTo(0, document.body.scrollHeight)")
        return len(page.all(".row")) == 60

    WebDriverWait(page.driver, 15).until(scrolled)


def test_search_filter_and_order(page: Page) -> None:
    page.open("#gallery-0")
    page.one("input[type=search]").send_keys("PROMPT 1")
    assert page.one(".gallery .status").text == "15 of 60 prompts"
    assert page.prompts()[:3] == ["prompt 1", "prompt 10", "prompt 11"]
    page.choose("language", "zh")
    assert page.one(".gallery .status").text == "10 of 60 prompts"
    assert page.prompts() == [f"prompt {p}" for p in (1, 11, 13, 15, 17, 19, 21, 31, 41, 51)]
    page.choose("Order", "largest difference between models")
    assert page.prompts()[:2] == ["prompt 51", "prompt 41"]
    page.choose("Order", "highest score first")
    assert page.prompts()[0] == "prompt 1"
    page.one("input[type=search]").send_keys(" nothing")
    assert page.one(".empty").text == "No prompt fits."


def test_status_filter_finds_what_went_wrong(page: Page) -> None:
    page.open("#gallery-0")
    page.choose("Status", "refused")
    assert page.prompts() == ["prompt 0"]
    assert [e.text for e in page.all(".gone")] == [
        "refused\npolicy says no",
        "blank\nplaceholder: ItemFailed",
    ]


def test_scores_of_two_evaluators_are_neither_averaged_nor_drawn_on_one_scale(page: Page) -> None:
    page.open("#gallery-1")
    cells = page.all("#gallery-1 .row:first-of-type .thumb")
    assert [cell.find_element(By.CSS_SELECTOR, ".score").text for cell in cells] == ["0.250", "25"]
    assert [cell.find_element(By.CSS_SELECTOR, ".meter i").get_attribute("style") for cell in cells] == [
        "width: 25%;"
    ] * 2
    assert "highest score first" not in page.choices("Order")
    box = page.all("#gallery-1 .models input")[1]
    box.click()
    assert "highest score first" in page.choices("Order")
    page.choose("Order", "highest score first")
    assert page.all("#gallery-1 .prompt-text")[0].text == "prompt 3"
    box.click()
    assert "highest score first" not in page.choices("Order")
    assert page.all("#gallery-1 .prompt-text")[0].text == "prompt 1"
    assert page.driver.get_log("browser") == []


def test_models_can_be_hidden(page: Page) -> None:
    page.open("#gallery-0")
    page.all(".models input")[0].click()
    assert [e.text.splitlines()[0] for e in page.all(".head > div")] == ["Prompt", "org/模型 #2"]


def test_enlarging_shows_the_original_and_the_details(page: Page) -> None:
    page.open("#gallery-0")
    page.choose("Order", "lowest of org/模型 #2 first")
    page.all(".row")[0].find_elements(By.CSS_SELECTOR, ".thumb")[2].click()
    assert page.enlarged().startswith("file:")
    side = page.one("dialog .side").text
    assert "read 59" in side
    assert "seed\n43" in side
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert "read 58" in page.one("dialog .side").text
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.one("dialog").is_displayed()


def test_without_the_originals_the_thumbnail_is_enlarged(page: Page, tmp_path: Path) -> None:
    alone = tmp_path / "moved.html"
    shutil.copyfile(page.file, alone)
    page.driver.get(alone.as_uri() + "#gallery-0")
    page.all(".thumb")[0].click()
    WebDriverWait(page.driver, 10).until(lambda _: "embedded thumbnail" in page.one(".stage").text)
    assert page.enlarged().startswith("data:image/webp")


def loaded(page: Page) -> list[str]:
    """Where the pictures of the enlarged view come from, once all have loaded."""
    script = "return [...document.querySelectorAll('.stage img')].map((i) => i.naturalWidth ? i.src : '')"
    found = WebDriverWait(page.driver, 10).until(
        lambda d: all(d.execute_script(script)) and d.execute_script(script)
    )
    return list(found)


def test_an_edit_is_shown_beside_its_source(page: Page) -> None:
    page.driver.get_log("browser")  # of the tests before
    page.open("#gallery-2")
    gallery = "#gallery-2 "
    assert [e.text.splitlines()[0] for e in page.all(f"{gallery}.head > div")] == [
        *("Prompt", "Source", "good", "org/模型 #2")
    ]
    assert [e.text for e in page.all(f"{gallery}.sources .caption")] == ["source", "source 1", "source 2"]
    first = page.all(f"{gallery}.row")[0]
    source, *results = [e.rect for e in first.find_elements(By.CSS_SELECTOR, ".picture")]
    assert len(results) == 2, "the source of all models is there once"
    assert source["x"] + source["width"] <= results[0]["x"]
    assert source["width"] == pytest.approx(3 * source["height"], rel=0.05)
    source_thumb = first.find_element(By.CSS_SELECTOR, ".sources .thumb")
    page.driver.execute_script("arguments[0].focus()", source_thumb)
    source_thumb.send_keys(Keys.ENTER)
    assert [e.text for e in page.all(".stage figcaption")] == ["source", "result"]
    assert [place.rpartition(".")[2] for place in loaded(page)] == ["webp", "png"]
    assert all(place.startswith("file:") for place in loaded(page))
    before, after = [e.rect for e in page.all(".stage img")]
    assert before["x"] + before["width"] <= after["x"]
    assert before["width"] == pytest.approx(after["width"], abs=1)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert [e.text for e in page.all(".stage figcaption")] == ["source 1", "source 2", "result"]
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert page.driver.get_log("browser") == []


def test_sources_too_are_thumbnails_where_the_page_is_alone(page: Page, tmp_path: Path) -> None:
    alone = tmp_path / "moved.html"
    shutil.copyfile(page.file, alone)
    page.driver.get(alone.as_uri() + "#gallery-2")
    page.all("#gallery-2 .sources .thumb")[0].click()
    WebDriverWait(page.driver, 10).until(lambda _: page.one(".stage").text.count("embedded thumbnail") == 2)
    assert {place[:15] for place in loaded(page)} == {"data:image/webp"}


def test_hostile_prompts_are_shown_and_not_run(page: Page) -> None:
    page.open("#gallery-0")
    assert HOSTILE in page.prompts()
    assert page.driver.execute_script("return window.hacked") is None
