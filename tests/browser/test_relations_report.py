"""Relations in the report: asked for, by themselves, on record, refused in one line, and on the page in a browser."""

from __future__ import annotations

import json
import random
import subprocess
import sys
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
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setenv("IMAGEEVALKIT_OUTPUT", str(tmp_path / "output"))
    return write_scores("org/a model", "bench", synergy(stars=4))


def test_relations_that_are_asked_for_are_files_and_a_map_on_the_page(cell: Cell) -> None:
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


def test_unchanged_scores_are_not_looked_at_again(cell: Cell) -> None:
    report(cell, "look", "truth")
    before = times(cell)
    # a later report, of whatever run, has them still
    assert main([]) == ExitStatus.COMPLETE
    assert times(cell) == before
    assert len(maps_on_the_page()) == 1
    assert report(cell, "look", "truth") == ExitStatus.COMPLETE
    assert times(cell) == before
    write_scores(*cell, synergy(25))
    main([])
    assert on_record(cell)["pairs"][0]["n"] == 25
    assert on_record(cell)["metrics"] == ["look", "truth"]


def test_no_statistics_are_imported_where_nothing_is_new(cell: Cell) -> None:
    report(cell, "look", "truth")
    code = (
        "import sys; from imageevalkit.report.__main__ import main; main([]);"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy', 'pandas', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_settings_stay_until_others_are_given(cell: Cell) -> None:
    report(cell, "look", "truth", preset="paper", synergy_density=0.9)
    assert on_record(cell)["thresholds"]["tradeoff_corr"] == 0.7
    main([])
    assert on_record(cell)["settings"] == {"preset": "paper", "synergy_density": 0.9}
    report(cell, preset="official")
    assert on_record(cell)["settings"] == {}
    assert on_record(cell)["thresholds"]["synergy_density"] == 0.4


def test_files_that_are_lost_or_damaged_come_back(cell: Cell) -> None:
    report(cell, "look", "truth")
    for damage in ("certainty.json", "dtm.png", "relationship_codes.csv"):
        if damage == "certainty.json":
            text = (cell.relations / damage).read_text()
            (cell.relations / damage).write_text(text[: len(text) // 2])
        else:
            (cell.relations / damage).unlink()
        assert report(cell, "look", "truth") == ExitStatus.COMPLETE
        assert {path.name for path in cell.relations.iterdir()} == FILES
        assert on_record(cell)["pairs"][0]["code"] == 0


def test_a_record_that_is_not_understood_is_a_damaged_one(cell: Cell) -> None:
    report(cell, "look", "truth")
    record = on_record(cell)
    codes = [{**pair, "codes": {"synergy": 1.0}} for pair in record["pairs"]]
    assert record["pairs"][0]["codes"] == {"0": 1.0}
    damages: list[dict[str, Any]] = [
        {"settings": {"synergy_threshold": 0.7}},
        {"settings": {"synergy": 7}},
        {"settings": {"preset": ["paper"]}},
        {"means": {}},
        {"schema": "imageevalkit.relations/9"},
        {"pairs": codes},
        {},
    ]
    for damage in damages:
        damaged = {**record, **damage} if damage else []
        (cell.relations / "certainty.json").write_text(json.dumps(damaged))
        assert main([]) == ExitStatus.COMPLETE
        assert maps_on_the_page() == [], damage
    assert report(cell, "look", "truth") == ExitStatus.COMPLETE
    assert on_record(cell) == record


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (["loook", "truth"], "no relations: there is no metric 'loook' of items (did you mean 'look'?)"),
        (
            ["look", "stars"],
            "no relations: relations are of scores from 0 to 1, but stars of item images/0 is 4",
        ),
    ],
)
def test_a_wrong_wish_is_one_line_and_costs_nothing_else(
    cell: Cell, capsys: pytest.CaptureFixture[str], metrics: list[str], says: str
) -> None:
    other = write_scores("other", "bench", synergy())
    report(other, "look", "truth")
    capsys.readouterr()
    assert report(cell, *metrics) == ExitStatus.FAILED
    [line] = [line for line in capsys.readouterr().out.splitlines() if "no relations" in line]
    assert line.startswith(f"{cell.key}: {says}")
    assert not cell.relations.exists()
    assert {path.name for path in other.relations.iterdir()} == FILES
    assert (output_root() / "report.html").stat().st_size > 0
    # it is this run's wish: the next report has nothing to complain of
    assert main([]) == ExitStatus.COMPLETE


def test_relations_of_scores_that_are_stale_are_not_shown(cell: Cell) -> None:
    report(cell, "look", "truth")
    lines = [json.loads(line) for line in cell.generation.read_text().splitlines()]
    lines[0] |= {"image_sha256": "0" * 64, "time": "2027-01-01T00:00:00.000+00:00"}
    cell.generation.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([])
    assert maps_on_the_page() == []


def test_metrics_that_were_asked_for_stay_and_those_of_the_benchmark_follow_the_items(cell: Cell) -> None:
    values = {"IQ-R": 0.9, "IQ-O": 0.8, "TA-C": 0.95}
    own = write_scores("model", "trig-t2i", [values] * 12)
    main([])
    assert on_record(own)["metrics"] == ["IQ-R", "IQ-O", "TA-C"]
    report(own, "TA-C", "IQ-R")
    for scores in ([values] * 12, [{**values, "D-K": 0.5}] * 12):
        write_scores(*own, scores)
        main([])
        assert on_record(own)["metrics"] == ["TA-C", "IQ-R"]
    # all of its own, asked for by name, are no fewer a wish
    report(own, "IQ-R", "IQ-O", "TA-C", "D-K")
    assert on_record(own)["asked"] is True
    follows = write_scores("another", "trig-t2i", [values] * 12)
    main([])
    write_scores(*follows, [{**values, "D-K": 0.5}] * 12)
    main([])
    assert on_record(follows)["metrics"] == ["IQ-R", "IQ-O", "TA-C", "D-K"]


def test_the_page_says_of_a_tilt_that_its_points_are_on_the_line(cell: Cell) -> None:
    write_scores(*cell, [{"look": 0.5 + n / 50, "truth": 0.5 + n / 50} for n in range(12)])
    report(cell, "look", "truth")
    [pair] = maps_on_the_page()[0]["pairs"]
    assert pair["label"] == "tilt: look dominates truth"
    assert pair["onLine"]


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
    run = run_eval(checkout, *words)
    assert run.returncode == 0, run.stdout + run.stderr
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


def test_the_page_shows_the_scatter_of_every_pair(page: Any) -> None:
    natural, width, kind = page.driver.execute_async_script(
        "const [img, done] = arguments; img.closest('details').open = true;"
        "img.decode().then(() => done([img.naturalWidth, img.clientWidth, img.src.slice(-5)]))",
        page.one(".map img.scatter"),
    )
    assert kind == ".webp"
    assert natural > 500
    assert width > 200


def test_the_page_has_every_pair_in_numbers_and_nothing_is_amiss(page: Any) -> None:
    summary = page.all(".map summary")[1]
    page.driver.execute_script("arguments[0].click()", summary)
    pairs = "[aria-label='Pairs of <b>two</b>'] tbody"
    page.wait(lambda: page.texts(f"{pairs} th")[0])
    assert page.texts(f"{pairs} th") == ["look × truth", "look × style", "truth × style"]
    assert "100.0 %" in page.texts(f"{pairs} tr")[0]
    width = page.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0
    assert page.console() == []
