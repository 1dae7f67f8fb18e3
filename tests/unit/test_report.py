"""The report from result files alone: what it shows, what it withholds, and what cannot break it."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image

from imageevalkit.common.errors import CellFailure, ExitStatus
from imageevalkit.jobs.plan import ReportOrder
from imageevalkit.report.__main__ import main, make_report
from imageevalkit.report.cell_parts import _Previews
from imageevalkit.report.collect import collect
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Evaluator, Metric, Result
from tests.support.cells import HUNDRED, QWEN, Made, changed, image_of, paint, write_cell, write_scored
from tests.support.generation import FakeDataset, FakeModel, generate
from tests.support.site import Site, reported

HOSTILE = "</script><script>alert(1)</script> <b>bold</b> \"quoted\" & 'single' \u2028 | `code` 中文"
SCRIPT_EVALUATOR = Evaluator("script/0123456789ab", official=False)
THREE = [
    Made("images/p/0001_1", "a red cat", value=0.5, keys={"language": "en"}, read="a red cat"),
    Made("images/p/0001_2", "a red cat", value=0.75, keys={"language": "en"}, seed=44),
    Made("images/p/0002_1", "一只猫", value=1.0, keys={"language": "zh"}),
]


def score(value: float, n: int = 3, half: float = 0.01) -> dict[str, Metric]:
    return {"accuracy": Metric(value, n, (value - half, value + half))}


def results() -> list[Result]:
    return [cell.result for cell in collect() if cell.result]


def csv_rows() -> list[dict[str, str]]:
    with (output_root() / "leaderboard.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def md_table() -> dict[str, dict[str, str]]:
    """The first table of leaderboard.md: model → column → text."""
    lines = (output_root() / "leaderboard.md").read_text().splitlines()
    rows = [re.split(r"(?<!\\) ?\| ?", line)[1:-1] for line in lines if line.startswith("|")]
    header = rows[0]
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows[2:] if len(row) == len(header)}


def test_csv_holds_every_metric_with_its_interval() -> None:
    metrics = {**score(0.9371), "accuracy/sign": Metric(0.5, 1)}
    write_cell("good", "text", THREE, metrics)
    assert main([]) == ExitStatus.COMPLETE
    headline, breakdown = csv_rows()
    assert (headline["model"], headline["score_name"]) == ("good", "text/accuracy@ppocr-v4")
    assert float(headline["value"]) == 0.9371
    assert float(headline["ci_low"]) == pytest.approx(0.9271)
    assert (headline["headline"], headline["n"], headline["state"]) == ("true", "3", "complete")
    assert (headline["expected"], headline["judged"], headline["git_commit"]) == ("3", "3", "0123abcd")
    assert (breakdown["metric"], breakdown["headline"], breakdown["ci_low"]) == ("accuracy/sign", "false", "")


def test_best_is_bold_and_so_are_ties_of_the_digits_shown() -> None:
    for model, value in (("a", 0.5), ("b", 0.93711), ("c", 0.93712)):
        write_cell(model, "text", THREE, score(value))
    main([])
    shown = {model: row["text/accuracy@ppocr-v4"] for model, row in md_table().items()}
    assert shown == {"b": "**0.9371** ±0.0100 · a", "c": "**0.9371** ±0.0100 · a", "a": "0.5000 ±0.0100 · b"}


def test_a_withheld_score_is_a_number_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    missing = [*THREE, Made("images/p/0003_1", "refused one", "refused", error=("Refused", "not allowed"))]
    write_cell("whole", "text", THREE, score(0.5555))
    write_cell("gap", "text", missing, {**score(0.8765), "accuracy/sign": Metric(0.4321, 2)})
    main([])
    assert md_table()["gap"]["text/accuracy@ppocr-v4"] == "incomplete 3/4"
    mine = [row for row in csv_rows() if row["model"] == "gap"]
    assert [row["value"] for row in mine] == ["", ""]
    assert mine[0]["withheld"] == "incomplete: 1 refused"
    table = capsys.readouterr().out
    html = (output_root() / "report/index.html").read_text()
    for text in (table, html, (output_root() / "leaderboard.md").read_text()):
        assert "incomplete" in text
        assert "1 refused" in text
        assert "0.8765" not in text
        assert "0.4321" not in text


def test_an_incomplete_score_under_official_treatment_is_marked_and_never_best() -> None:
    missing = [*THREE, Made("images/p/0003_1", "lost", "failed")]
    write_cell("whole", "text", THREE, score(0.5))
    write_cell("other", "text", THREE, score(0.4))
    write_cell("gap", "text", missing, score(0.9), treatment="official")
    main([])
    column = {model: row["text/accuracy@ppocr-v4"] for model, row in md_table().items()}
    assert column["gap"] == "0.9000 ±0.0100 (3/4, official way)"
    assert (column["whole"], column["other"]) == ("**0.5000** ±0.0100 · a", "0.4000 ±0.0100 · b")


def test_limited_full_versions_and_evaluators_never_share_a_column() -> None:
    write_cell("full", "text", THREE, score(0.5))
    write_cell("first3", "text", THREE, score(0.9), limit=3)
    write_cell("qwen", "text", THREE, score(0.8), evaluator=QWEN)
    write_cell("newer", "text", THREE, score(0.7), version="2")
    main([])
    table = md_table()
    numbers = {m: [c for c, text in row.items() if re.match(r"\**\d", text)] for m, row in table.items()}
    assert numbers == {
        "full": ["text/accuracy@ppocr-v4 1"],
        "first3": ["text/accuracy@ppocr-v4 1 (first 3 items)"],
        "qwen": ["text/accuracy@qwen2.5-vl-7b 1"],
        "newer": ["text/accuracy@ppocr-v4 2"],
    }
    assert "**" not in "".join(text for row in table.values() for text in row.values())


@pytest.mark.parametrize(
    ("text", "reason"), [('{"schema": ', "not readable"), ('{"schema": "other/9"}', "schema is")]
)
def test_a_broken_result_is_listed_and_harms_no_other_cell(text: str, reason: str) -> None:
    write_cell("good", "text", THREE, score(0.5))
    broken = write_cell("broken", "text", THREE, score(0.9))
    broken.result.write_text(text)
    assert main([]) == ExitStatus.FAILED
    assert make_report(None, ReportOrder(["good/text"])) == ExitStatus.COMPLETE, "a run of another result"
    assert [row["model"] for row in csv_rows()] == ["good"]
    listed = [x for x in (output_root() / "leaderboard.md").read_text().splitlines() if "- broken/text" in x]
    assert len(listed) == 1
    assert reason in listed[0]


@pytest.mark.parametrize(("field", "value"), [("interval", ["a", "b"]), ("value", "high")])
def test_a_result_with_a_wrong_metric_is_broken_not_shown(field: str, value: object) -> None:
    cell = write_cell("odd", "text", THREE, score(0.5))
    raw = json.loads(cell.result.read_text())
    raw["metrics"]["accuracy"][field] = value
    cell.result.write_text(json.dumps(raw))
    (report,) = collect()
    assert report.result is None
    assert "'metrics.accuracy." in report.problem


def test_half_written_records_and_wrong_types_do_not_break_the_report() -> None:
    cell = write_cell("torn", "text", THREE, score(0.5))
    with cell.generation.open("a") as file:
        file.write(
            '{"item": 5}\n[]\n{"item": "x", "status": 3, "prompt": {"a": 1}, "size": "big", "seed": "s"}\n'
        )
        file.write('{"item": "outside", "status": "ok", "path": "../../../secret.png"}\n{"item": "tor')
    with cell.scores.open("a") as file:
        file.write('{"item": "x", "values": {"accuracy": NaN, "other": "high"}, "keys": 3, "detail": [1]}\n')
    assert main([]) == ExitStatus.COMPLETE
    (report,) = collect()
    assert {item.id: item.path for item in report.items()}["outside"] == ""
    assert all(item.values.keys() <= {"accuracy"} for item in report.items())


def test_a_report_that_cannot_be_written_says_so_in_one_line(output: Path) -> None:
    write_cell("a", "text", THREE, score(0.5))
    (output / "leaderboard.csv").mkdir()
    with pytest.raises(
        CellFailure, match=r"the report cannot be written: .*leaderboard\.csv: Is a directory"
    ):
        main([])


def test_a_result_older_than_its_images_is_stale_and_a_number_nowhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_cell("fresh", "text", THREE, score(0.5555))
    write_cell("other", "text", THREE, score(0.4444))
    metrics = {**score(0.8765), "accuracy/sign": Metric(0.4321, 2)}
    old = write_cell("old", "text", THREE, metrics)
    # the first image was made after the evaluation
    old.generation.write_text(old.generation.read_text().replace("T09:00:00.000", "T10:00:01.000", 1))
    main([])
    column = {model: row["text/accuracy@ppocr-v4"] for model, row in md_table().items()}
    assert column["old"] == "stale"
    assert column["fresh"] == "**0.5555** ±0.0100 · a", "the best is among those that still hold"
    mine = [row for row in csv_rows() if row["model"] == "old"]
    assert [(row["value"], row["ci_low"], row["ci_high"]) for row in mine] == [("", "", "")] * 2
    assert mine[0]["withheld"].startswith("stale: 1 of 3 items were generated again")
    site = Site(output_root() / "report/index.html")
    for text in (
        capsys.readouterr().out,
        site.page.read_text(),
        (output_root() / "leaderboard.md").read_text(),
    ):
        assert "stale" in text and "evaluate again" in text
        assert "0.8765" not in text and "0.4321" not in text
    first, second, _ = site.items("old", "text").values()
    assert (first["judged"], first["values"], first["detail"]) == ("stale", {}, {})
    assert (second["judged"], second["values"]) == ("judged", {"accuracy": 0.75}), "still the judged one"
    assert (site.cell("old", "text")["state"], site.cell("old", "text")["figures"]) == ("stale", {})


def test_hostile_text_stays_text() -> None:
    items = [Made("images/p/1_1", HOSTILE, value=0.5, keys={"kind": HOSTILE}, read=HOSTILE)]
    write_cell("<img src=x onerror=alert(1)>", "text", items, score(0.5, 1))
    write_cell(
        "b|ar*", "text", [Made("images/p/1_1", HOSTILE, "refused", error=("Refused", HOSTILE))], score(0.1)
    )
    main([])
    single = Site(output_root() / "report.html")
    html = single.page.read_text()
    assert "<img src=x" not in html
    assert "<b>bold" not in html
    assert "alert(1)</script>" not in html
    # each part, and the page's own script
    assert len(re.findall("</script", html)) == len(re.findall("<script", html)) == len(single.inside) + 1
    for site in (single, Site(output_root() / "report/index.html")):
        assert site.prompts("text")["rows"][0] == {
            "prompt": HOSTILE,
            "items": ["images/p/1_1"],
            "keys": {"kind": HOSTILE},
        }
        assert site.items("b|ar*", "text")["images/p/1_1"]["error"] == ["Refused", HOSTILE]
    assert set(md_table()) == {r"\<img src=x onerror=alert(1)\>", r"b\|ar\*"}


def test_the_page_loads_nothing_from_elsewhere() -> None:
    write_cell("a", "text", THREE, score(0.5))
    main([])
    site = output_root() / "report"
    html, style = (site / "index.html").read_text(), (site / "page.css").read_text()
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", html) == ["data:,", "page.css", "page.js"]
    assert not re.search(r"@import|url\((?!\"?data:)", style)
    assert "default-src 'none'; script-src 'self' file:;" in unescape(html)
    single = (output_root() / "report.html").read_text()
    assert re.findall(r"<(?:link|script|img)[^>]*(?:src|href)=\"([^\"]*)\"", single) == ["data:,"]
    assert "default-src 'none'; script-src 'sha256-" in unescape(single)


def test_the_same_input_gives_the_same_files(output: Path) -> None:
    for model in ("b", "a", "c"):
        write_cell(model, "text", THREE, score(0.5))
    main([])
    names = ("report.html", "leaderboard.csv", "leaderboard.md", "report/index.html")
    made = re.compile(rb'"made":"[^"]*"')  # the time alone differs
    first = [made.sub(b"", (output / name).read_bytes()) for name in names]
    main([])
    assert [made.sub(b"", (output / name).read_bytes()) for name in names] == first


def test_the_gallery_groups_repetitions_and_keeps_what_became_of_each_item() -> None:
    rows = [
        *THREE,
        Made("images/p/0003_1", "refused", "refused", error=("Refused", "policy says no")),
        Made("images/p/0004_1", "failed", "failed"),
        Made("images/p/0005_1", "blank", "blank"),
        Made("images/p/0006_1", "unread", judged="unparsed"),
        Made("images/p/0007_1", "absent", "absent", judged="failed: never attempted"),
        Made("images/p/0010_1", "gone"),
    ]
    cell = write_cell("a", "text", rows, score(0.5))
    image_of(cell, "images/p/0010_1").unlink()
    site = reported()
    prompts, items = site.prompts("text"), site.items("a", "text")
    assert [len(row["items"]) for row in prompts["rows"]] == [2, 1, 1, 1, 1, 1, 1, 1]
    assert prompts["filters"] == {"language": ["en", "zh"]}
    assert {id[-6:-2]: (item["status"], "preview" in item) for id, item in items.items()} == {
        "0001": ("generated", True),
        "0002": ("generated", True),
        "0003": ("refused", False),
        "0004": ("failed", False),
        "0005": ("blank", False),
        "0006": ("generated", True),
        "0007": ("failed", False),
        "0010": ("corrupt", False),
    }
    assert items["images/p/0003_1"]["error"] == ["Refused", "policy says no"]
    assert items["images/p/0003_1"]["remark"] == "policy says no"
    assert items["images/p/0006_1"]["judged"] == "unparsed"
    first = items["images/p/0001_1"]
    assert first["detail"] == {"expected": "a red cat", "read": "a red cat"}
    assert (first["file"], first["seed"], first["values"]) == ("images/p/0001_1.png", 43, {"accuracy": 0.5})
    failures = {one["outcome"]: (one["count"], one["items"]) for one in site.cell("a", "text")["failures"]}
    assert failures == {
        "refused": (1, ["images/p/0003_1"]),
        "failed": (1, ["images/p/0007_1"]),  # the last of two, for different reasons
        "blank": (1, ["images/p/0005_1"]),
        "unparsed": (1, ["images/p/0006_1"]),
        "corrupt": (1, ["images/p/0010_1"]),
    }
    assert site.index["benchmarks"][0]["prompts"] == 8


def test_thumbnails_are_kept_and_small_and_the_site_has_links_to_them(output: Path) -> None:
    big = Made("images/p/big_1", "big", value=1.0)
    write_cell(
        "a", "text", [big], score(1.0), draw=lambda item: Image.radial_gradient("L").resize((900, 300))
    )
    main([])
    (thumb,) = (output / "a/text/.thumbnails").iterdir()
    with Image.open(thumb) as image:
        assert (image.format, image.size) == ("WEBP", (192, 64))
    [preview] = (output / "report/pictures").glob("*/*.webp")
    assert preview.samefile(thumb)
    written = thumb.stat().st_mtime_ns
    main([])
    assert thumb.stat().st_mtime_ns == written


def statuses() -> list[tuple[str, bool]]:
    """Returns the statuses of the items of the only cell in a report, and whether each has a picture."""
    return [(item["status"], "preview" in item) for item in reported().items("m", "fake").values()]


def test_an_image_that_was_replaced_is_not_shown_by_the_thumbnail_of_the_old_one() -> None:
    generate(FakeModel(), FakeDataset(3))
    assert statuses() == [("generated", True)] * 3
    replaced = Cell("m", "fake").folder / "images/00001.png"
    Image.new("RGB", (64, 48), "red").save(replaced)
    then = replaced.stat().st_mtime - 1000  # earlier ones come from "cp --preserve"
    os.utime(replaced, (then, then))
    for _ in range(2):
        assert statuses() == [("generated", True), ("corrupt", False), ("generated", True)]


def test_noise_and_drift_of_the_judge_stand_beside_each_score(capsys: pytest.CaptureFixture[str]) -> None:
    """``b`` is better by 14 of 100 items, which the judge alone may make; ``c`` by 14, too, of a judge that is sure."""
    values = {f"p/{n:04}": float(n % 2) for n in range(100)}
    better = {**values, **dict.fromkeys([item for item, value in values.items() if not value][:14], 1.0)}
    noise = {"of": 100, "repeated": 50, "changed": 5, "standard_errors": {"accuracy": 0.06}}
    drift = "the judge has drifted: 9 of 18 probes"
    for benchmark, more in (("noisy", {"noise": noise}), ("sure", {"notes": [drift]})):
        write_scored(Cell("a", benchmark), values)
        write_scored(Cell("b", benchmark), better, more=more)
    assert main([]) == ExitStatus.COMPLETE
    rows = {(row["model"], row["benchmark"]): row for row in csv_rows()}
    assert {key: row["group"] for key, row in rows.items()} == {
        ("a", "noisy"): "a",
        ("b", "noisy"): "a",
        ("a", "sure"): "b",
        ("b", "sure"): "a",
    }
    assert rows["b", "noisy"]["noise"] == "0.06" and rows["a", "noisy"]["noise"] == ""
    # one judge: what it is known by here is its name, as the files say no more of it
    assert rows["b", "sure"]["warning"] == drift and not rows["b", "noisy"]["warning"]
    table = capsys.readouterr().out
    assert "do not differ significantly, beyond the judge's noise" in table
    assert re.search(r"^\* b +0\.6400!", table, re.M) and re.search(r"^  a +0\.5000  ", table, re.M)
    assert "!: the judge has drifted" in table
    shown = md_table()["b"]
    assert shown["sure/accuracy@ppocr-v4"].startswith("**0.6400**! ")
    assert shown["noisy/accuracy@ppocr-v4"].startswith("0.6400 "), "none is the best where all tie"
    told = {
        (cell["model"], cell["benchmark"]): cell["figures"]
        for cell in Site(output_root() / "report/index.html").index["cells"]
    }
    assert told["b", "sure"]["accuracy"]["drift"] == drift
    assert "drift" not in told["b", "noisy"]["accuracy"]
    assert "0.6400!" in (output_root() / "leaderboard.tex").read_text().replace("}", "")


def test_two_models_of_a_column_are_compared_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for benchmark, up in (("clear", 12), ("close", 2), ("three", 12)):
        write_scored(Cell("a", benchmark), HUNDRED)
        write_scored(Cell("b", benchmark), changed(HUNDRED, up=up))
    write_scored(Cell("c", "three"), HUNDRED)
    assert main([]) == ExitStatus.COMPLETE
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "(95 % interval " in line] == [
        "clear/accuracy@ppocr-v4: b is better than a by 0.1200 (95 % interval 0.0700 to 0.1981)",
        "close/accuracy@ppocr-v4: b and a do not differ significantly: "
        "difference 0.0200 (95 % interval -0.0177 to 0.0700)",
    ]


def write_two_models() -> None:
    """``z`` has the better mean, ``a`` the better score on the first benchmark, and on four that do not count."""
    first, second = ({f"p/{n:04}": float(n < right) for n in range(40)} for right in (20, 10))
    for model, own in (("a", (first, second)), ("z", (second, dict.fromkeys(first, 1.0)))):
        for benchmark, values in zip(("easy", "hard"), own, strict=True):
            write_scored(Cell(model, benchmark), values, evaluator=QWEN)
        good = {f"p/{n:04}": float(n < 36 if model == "a" else n < 4) for n in range(40)}
        write_scored(Cell(model, "toy"), dict([*good.items()][:20]), evaluator=QWEN)
        write_scored(Cell(model, "own"), good, evaluator=SCRIPT_EVALUATOR)
        write_scored(Cell(model, "read"), good)
        write_scored(Cell(model, "tried"), good, evaluator=QWEN, more={"limit": 40})


def orders(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, list[str]], str, Site]:
    """The order of the models in each format, what was printed, and the site."""
    site, printed = Site(output_root() / "report/index.html"), capsys.readouterr().out
    blocks = [block.splitlines() for block in printed.split("\n\n") if " score " in block.partition("\n")[0]]
    assert len({tuple(line[2] for line in block[1:]) for block in blocks}) == 1
    tex = re.findall(r"^([az]) &", (output_root() / "leaderboard.tex").read_text(), re.M)
    with ZipFile(output_root() / "leaderboard.xlsx") as book:
        words = re.findall("<t[^>]*>([^<]*)</t>", book.read("xl/sharedStrings.xml").decode())
    found = {
        "terminal": [line[2] for line in blocks[0][1:]],
        "md": [*md_table()],
        "csv": [*dict.fromkeys(row["model"] for row in csv_rows())],
        "xlsx": sorted(["a", "z"], key=words.index),
        "tex": tex,
        "site": [model["name"] for model in site.index["models"]],
    }
    return found, printed, site


def test_models_are_in_the_order_of_the_mean_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    write_two_models()
    assert main([]) == ExitStatus.COMPLETE
    found, printed, site = orders(capsys)
    assert set(map(tuple, found.values())) == {("z", "a")}
    label = "mean of 2 benchmarks"
    texts = {name: (output_root() / f"leaderboard.{name}").read_text() for name in ("md", "tex", "csv")}
    assert all(label in text for text in (printed, *texts.values()))
    assert md_table()["z"][label] == "62.50" and md_table()["a"][label] == "37.50"
    assert {(row["mean"], row["mean_of"]) for row in csv_rows() if row["model"] == "z"} == {("0.625", label)}
    left_out = {
        "toy@qwen2.5-vl-7b": "fewer than 30 items",
        "own@script/0123456789ab": "a script's own result",
        "read@ppocr-v4": "no official evaluator",
        "tried@qwen2.5-vl-7b (first 40 items)": "not all items",
    }
    assert site.index["mean"] == {"of": ["easy@qwen2.5-vl-7b", "hard@qwen2.5-vl-7b"], "leftOut": left_out}
    for name, why in left_out.items():
        assert f"{name} ({why})" in printed


@pytest.mark.parametrize(
    ("sort_by", "label"),
    [
        (["own", "read", "hard"], "mean of 3 benchmarks"),
        (["easy/accuracy@qwen2.5-vl-7b"], "mean of 1 benchmark"),
    ],
)
def test_the_user_chooses_what_orders_the_models(
    sort_by: list[str], label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_two_models()
    assert make_report(None, ReportOrder([], sort_by=sort_by)) == ExitStatus.COMPLETE
    found, printed, _ = orders(capsys)
    assert set(map(tuple, found.values())) == {("a", "z")}
    assert f"sorted by the {label}" in printed and label in md_table()["a"]


def test_none_is_highlighted_where_all_models_tie() -> None:
    for model in ("a", "b", "c"):
        write_cell(model, "text", THREE, score(0.5))
    site = reported()
    assert "**" not in "".join(md_table()[model]["text/accuracy@ppocr-v4"] for model in "abc")
    assert not any("best" in site.cell(model, "text")["figures"]["accuracy"] for model in "abc")


def test_a_missing_interval_states_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write_scored(Cell("a", "few"), {f"p/{n}": 1.0 for n in range(5)})
    many = write_scored(Cell("a", "sum"), {f"p/{n}": 1.0 for n in range(40)})
    own = write_scored(Cell("a", "own"), {f"p/{n}": 1.0 for n in range(40)}, evaluator=SCRIPT_EVALUATOR)
    for cell in (many, own):
        raw = json.loads(cell.result.read_text())
        raw["metrics"]["accuracy"]["interval"] = None
        cell.result.write_text(json.dumps(raw))
    site = reported()
    reasons = {row["benchmark"]: row["no_interval"] for row in csv_rows()}
    assert reasons == {
        "few": "fewer than 10 prompts",
        "sum": "the score is not a mean over items",
        "own": "metrics.json gives none",
    }
    printed = capsys.readouterr().out
    for benchmark, why in reasons.items():
        assert site.cell("a", benchmark)["figures"]["accuracy"]["noInterval"] == why
        for text in (printed, (output_root() / "leaderboard.md").read_text().replace("\\", "")):
            assert re.search(rf"no 95 % interval: a / {benchmark}/accuracy@.*: {why}", text)


def test_a_text_is_no_formula_in_the_csv() -> None:
    for model in ("=1+1", "+a", "-b", "@c"):
        write_cell(model, "text", THREE, score(0.5))
    main([])
    assert {row["model"] for row in csv_rows()} == {"'=1+1", "'+a", "'-b", "'@c"}
    with (output_root() / "leaderboard.csv").open() as file:
        assert "'=1+1/text/result.json" in file.read()


def test_one_thread_looks_at_all_equal_images(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads would link one thumbnail under one temporary name."""
    items = [Made(f"images/{n:03}", "a red cat", value=1.0) for n in range(30)]
    write_cell("a", "text", items, score(1.0, 30), draw=lambda item: paint(items[0]))
    together, look_at = list[int](), _Previews._look_at

    def watched(self: _Previews, images: Sequence[tuple[str, str]]) -> None:
        together.append(len(images))
        look_at(self, images)

    monkeypatch.setattr(_Previews, "_look_at", watched)
    assert all("preview" in item for item in reported().items("a", "text").values())
    assert len(together) == 1 and together[0] >= 29, "the thumbnail may be of one of them already"
    assert len([*(output / "report/pictures").glob("*/*")]) == 1
