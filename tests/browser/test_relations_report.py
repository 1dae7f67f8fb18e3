"""Relations in the report: asked for, by themselves, on record, refused in one line, and on the page in a browser."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imageevalkit.common.errors import ExitStatus
from imageevalkit.jobs.plan import ReportOrder
from imageevalkit.report.__main__ import main, make_report
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Metric
from tests.support.cells import PPOCR, Made, write_cell
from tests.support.checkout import make_checkout, needs_driver_env, run_eval

FILES = {
    *("result.json", "relationship_codes.csv", "certainty.json"),
    *("dtm.png", "dtm.svg", "scatter.png", "scatter.svg", "scatter.webp"),
}
Values = Mapping[str, float]


def write_scores(model: str, benchmark: str, values: Sequence[Values]) -> Cell:
    """A finished cell whose items have these values."""
    items = [Made(f"images/{n}", f"prompt {n}", value=0.5) for n in range(len(values))]
    cell = write_cell(model, benchmark, items, {"accuracy": Metric(0.5, len(items))})
    lines = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    texts = [json.dumps(line | {"values": one}) for line, one in zip(lines, values, strict=True)]
    cell.scores.write_text("".join(f"{text}\n" for text in texts))
    return cell


def synergy(n: int = 24, **more: float) -> list[Values]:
    draw = random.Random(n)
    return [{"look": draw.uniform(0.85, 1), "truth": draw.uniform(0.85, 1), **more} for _ in range(n)]


def report(cell: Cell, *metrics: str, **settings: Any) -> ExitStatus:
    """The report as a run of ``cell`` starts it."""
    wishes = {"relations": {cell.benchmark: metrics} if metrics else {}, "relations_kwargs": settings}
    return make_report(None, ReportOrder([cell.key], {"relations": wishes}))


def on_record(cell: Cell) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((cell.relations / "certainty.json").read_text())
    return loaded


def maps_on_the_page() -> list[dict[str, Any]]:
    page = (output_root() / "report/index.html").read_text()
    index = page.partition('data-part="index">')[2].partition("</script>")[0]
    maps: list[dict[str, Any]] = json.loads(index)["relations"]
    return maps


def times(cell: Cell) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in cell.relations.iterdir()}


@pytest.fixture
def cell() -> Cell:
    return write_scores("org/a model", "bench", synergy(stars=4))


def test_relations_are_files_and_a_map_and_are_made_again_only_where_they_are_damaged(cell: Cell) -> None:
    assert report(cell, "look", "truth", "stars/5") == ExitStatus.COMPLETE
    assert {path.name for path in cell.relations.iterdir()} == FILES
    assert on_record(cell)["pairs"][0]["code"] == 0
    assert on_record(cell)["evaluator"] == PPOCR.id
    codes = json.loads((cell.relations / "result.json").read_text())["relationship_codes"]
    assert codes["look_truth"] == codes["truth_look"] == 0
    for name in ("dtm", "scatter"):
        with Image.open(cell.relations / f"{name}.png") as image:
            assert min(image.size) > 400
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10
        assert ElementTree.parse(cell.relations / f"{name}.svg").getroot().tag.endswith("svg")
    [shown] = maps_on_the_page()
    pair = shown["pairs"][0]
    assert (pair["first"], pair["second"], pair["kind"]) == ("look", "truth", "synergy")
    assert (pair["certainty"], pair["n"]) == (1, 24)
    assert shown["files"][0]["href"] == "../org/a%20model/bench/relations/dtm.svg"

    before = times(cell)
    # a later report, of whatever run, has them still
    assert main([]) == report(cell, "look", "truth", "stars/5") == ExitStatus.COMPLETE
    assert times(cell) == before, "unchanged scores are not looked at again"
    record = on_record(cell)
    text = json.dumps(record)
    for damaged in (text[: len(text) // 2], json.dumps({**record, "pairs": [{}]})):
        (cell.relations / "certainty.json").write_text(damaged)
        assert main([]) == ExitStatus.COMPLETE
        assert maps_on_the_page() == []
    (cell.relations / "dtm.png").unlink()
    assert report(cell, "look", "truth", "stars/5") == ExitStatus.COMPLETE
    assert on_record(cell) == record
    assert {path.name for path in cell.relations.iterdir()} == FILES


def test_new_scores_have_new_relations_and_stale_ones_none(cell: Cell) -> None:
    report(cell, "look", "truth")
    write_scores(*cell, synergy(25))
    main([])
    assert on_record(cell)["pairs"][0]["n"] == 25
    assert on_record(cell)["metrics"] == ["look", "truth"]
    lines = [json.loads(line) for line in cell.generation.read_text().splitlines()]
    lines[0] |= {"image_sha256": "0" * 64, "time": "2027-01-01T00:00:00.000+00:00"}
    cell.generation.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([])
    assert maps_on_the_page() == []


# ---- through eval.sh

TWO_SCORES = """
import json

from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import Benchmark, Measurer, Sample
from imageevalkit.benchmark.question import Answer, measure
from imageevalkit.store.results import Evaluator, Score
from imageevalkit.metrics import mean


class TwoScores(Benchmark):
    name, version, headline = "two-scores", "1", ("look",)
    measurers = {"both": Measurer("benchmarks.two_scores.benchmark:Both")}

    def samples(self):
        return [Sample(f"images/{n}.png", f"prompt {n}") for n in range(12)]

    def questions(self, item, image, answers):
        yield measure("both", image)

    def score(self, item, answers):
        return Score(answers["both"].value)

    def metrics(self, scores):
        return {name: mean(scores, name) for name in ("look", "truth")}


class Both(Answerer):
    evaluator = Evaluator("both/1", official=True)

    def ask(self, questions, workers=1):
        for question in questions:
            yield Answer(question, json.dumps({"look": 0.9, "truth": 0.95}))
"""


@needs_driver_env
def test_relations_are_asked_for_with_an_option(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    folder = checkout / "benchmarks/two_scores"
    folder.mkdir()
    (folder / "benchmark.py").write_text(TWO_SCORES)
    words = ["--model_names", "reference-noise", "--ds_names", "two-scores"]
    words += ["--relations", "two-scores=look,truth", "--relations_kwargs", "preset=paper,resamples=200"]
    run_eval(checkout, *words, status=0)
    folder = checkout / "output/reference-noise/two-scores/relations"
    assert {path.name for path in folder.iterdir()} == FILES
    record = json.loads((folder / "certainty.json").read_text())
    assert (record["resamples"], record["thresholds"]["tradeoff_corr"]) == (200, 0.7)


# ---- in a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The benchmark's page of three metrics of two models, in Chromium."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from tests.support.browser import CHROMIUM, DRIVER, browser

    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver (apt-get install chromium-driver)")
    folder = tmp_path_factory.mktemp("relations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IMAGEEVALKIT_OUTPUT", str(folder / "output"))
        draw = random.Random(0)
        for model in ("one", "<b>two</b>"):
            values = [{**one, "style": draw.random()} if n % 3 else one for n, one in enumerate(synergy(30))]
            report(write_scores(model, "bench", values), "look", "truth", "style")
    with browser(folder, folder / "output/report/index.html") as opened:
        opened.open("#/benchmark/bench")
        yield opened


def test_the_page_has_a_map_for_each_model_with_its_legend(page: Any) -> None:
    maps = page.all(".map")
    assert [one.find_element("css selector", "figcaption").text for one in maps] == ["<b>two</b>", "one"]
    assert len(page.all(".legend li")) == 7
    names = [one.text for one in maps[0].find_elements("css selector", ".dtm tbody th")]
    assert names == ["look", "style", "truth"]
    fields = maps[0].find_elements("css selector", ".dtm .field")
    assert len(fields) == 3
    sure = [one for one in fields if "synergy" in one.get_attribute("class")]
    assert [one.get_attribute("title") for one in sure] == [
        "look × truth: synergy, in 100.0 % of resamples, n = 30"
    ]
    colour = "return getComputedStyle(arguments[0]).backgroundColor"
    legend = page.one(".legend .kind-synergy")
    assert page.driver.execute_script(colour, sure[0]) == page.driver.execute_script(colour, legend)
    natural, kind = page.driver.execute_async_script(
        "const [img, done] = arguments; img.closest('details').open = true;"
        "img.decode().then(() => done([img.naturalWidth, img.src.slice(-5)]))",
        page.one(".map img.scatter"),
    )
    assert kind == ".webp" and natural > 500
    page.driver.execute_script("arguments[0].click()", page.all(".map summary")[1])
    pairs = "[aria-label='Pairs of <b>two</b>'] tbody"
    page.wait(lambda: page.texts(f"{pairs} th")[0])
    assert page.texts(f"{pairs} th") == ["look × truth", "look × style", "truth × style"]
    assert "100.0 %" in page.texts(f"{pairs} tr")[0]
    assert page.console() == []
