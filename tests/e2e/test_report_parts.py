"""The parts of the report's site: the contract with the page, reuse of unchanged parts, results of several folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import typing
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from imageevalkit.common.atomic import write_atomic
from imageevalkit.report import parts, site
from imageevalkit.report.__main__ import main, report_of
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.results import Metric
from tests.support.cells import Made, write_cell
from tests.support.commands import eval_here
from tests.support.site import Site, reported

REPORT = Path(__file__).parents[2] / "imageevalkit/report"
TWO = [Made("images/p/1", "a cat", value=1.0), Made("images/p/2", "a dog", value=0.0)]
HALF = {"accuracy": Metric(0.5, 2)}


# ---- the contract

PRIMITIVE = {"string": "str", "number": "number", "boolean": "bool", "null": "None"}


def interfaces() -> dict[str, dict[str, tuple[bool, str]]]:
    """The fields of each interface of data.ts, and of each object within one ("Cell.failures"): whether it may be
    absent, and its type."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (REPORT / "page/src/data.ts").read_text(), flags=re.S)
    found = dict[str, dict[str, tuple[bool, str]]]()

    def read(name: str, body: str) -> None:
        found[name] = {}
        rest = body
        while match := re.match(r"\s*(\w+)(\??):\s*", rest):
            rest, depth, end = rest[match.end() :], 0, 0
            while depth or rest[end] != ";":
                depth += {"{": 1, "}": -1}.get(rest[end], 0)
                end += 1
                if end == len(rest):
                    break
            kind, rest = rest[:end].strip(), rest[end + 1 :]
            found[name][match[1]] = match[2] == "?", kind
            if inner := re.search(r"\{(.*)\}", kind, re.S):
                read(f"{name}.{match[1]}", inner[1].strip().rstrip(";") + ";")

    for match in re.finditer(r"export interface (\w+) \{\n(.*?)\n\}", text, re.S):
        read(match[1], match[2])
    return found


def structs() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The structs by the name of their interface."""
    within = {
        "Failure": "Cell.failures",
        "Breakdown": "Board.breakdowns",
        "Point": "Curve.points",
        "Kind": "Index.kinds",
        "Link": "Index.comparisons",
        "RelationPair": "RelationMap.pairs",
        "PromptRow": "Prompts.rows",
        "Input": "Prompts.rows.inputs",
        "Item": "Items.items",
        "MoreItem": "More.items",
    }
    for name, kind in vars(parts).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
            yield within.get(name, name), kind


def primitives(hint: Any) -> set[str]:
    """The words for plain values in a type; empty where it holds others."""
    kinds = {str: "str", int: "number", float: "number", bool: "bool", type(None): "None"}
    members = typing.get_args(hint) if "|" in str(hint) else (hint,)
    known = {kinds.get(one, "?") for one in members if one is not msgspec.UnsetType}
    return set() if "?" in known else known


def test_the_parts_are_those_that_the_page_reads() -> None:
    declared, made = interfaces(), dict(structs())
    assert declared.keys() - made.keys() <= {name for name in declared if name.startswith("VoteReport")} | {
        "RelationMap.files"
    }
    assert len(made) > 20
    for name, kind in made.items():
        hints = typing.get_type_hints(kind)
        fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
        assert fields.keys() == declared[name].keys(), name
        for field, one in fields.items():
            may_lack, text = declared[name][field]
            has_default = one.default is not msgspec.NODEFAULT or one.default_factory is not msgspec.NODEFAULT
            assert may_lack == (has_default and kind.__struct_config__.omit_defaults), f"{name}.{field}"
            words = {PRIMITIVE.get(word.strip(), "?") for word in text.split("|")}
            if (mine := primitives(hints[one.name])) and "?" not in words:
                assert mine == words, f"{name}.{field}"


# ---- what is made again


def folders() -> dict[str, str]:
    """The folder of the parts of each model's cell."""
    index = Site(output_root() / "report/index.html").index
    return {one["model"]: one["folder"] for one in index["cells"]}


def inodes() -> dict[str, int]:
    """Returns the inodes of all parts."""
    data = output_root() / "report/data/cells"
    return {path.relative_to(data).as_posix(): path.stat().st_ino for path in data.rglob("*.js")}


def test_only_cells_that_changed_are_built_again_and_others_go() -> None:
    for model in ("same", "other", "gone"):
        write_cell(model, "text", TWO, HALF)
    main([])
    before, files = folders(), inodes()
    main([])
    assert (folders(), inodes()) == (before, files), "nothing changed"

    changed = Cell("other", "text")
    lines = changed.scores.read_text().replace('"read": ""', '"read": "something else"')
    changed.scores.write_text(lines)
    shutil.rmtree(Cell("gone", "text").folder)
    main([])
    after = folders()
    assert after["same"] == before["same"] and after["other"] != before["other"]
    kept = {name: inode for name, inode in files.items() if name.startswith(before["same"])}
    assert kept.items() <= inodes().items()
    assert {path.name for path in (output_root() / "report/data/cells").iterdir()} == set(after.values())
    assert Site(output_root() / "report/index.html").items("other", "text")["images/p/1"]["detail"] == {
        "expected": "a cat",
        "read": "something else",
    }


def test_a_report_that_is_cut_off_leaves_the_site_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = write_cell("a", "text", TWO, HALF)
    items = reported().items("a", "text")
    os.utime(cell.scores)

    def cut(path: Path, data: bytes, durably: bool = True) -> None:
        if path.name == "index.html":
            raise KeyboardInterrupt
        write_atomic(path, data, durably)

    with monkeypatch.context() as patch:
        patch.setattr(site, "write_atomic", cut)
        with pytest.raises(KeyboardInterrupt):
            main([])
    assert Site(output_root() / "report/index.html").items("a", "text") == items


# ---- text from outside

HOSTILE = (
    "</script><script>alert(1)</script><!-- \u202egnp \x1b]0;title\x07\x1b[31m half \ud83d " + "x" * 10_000
)


def test_any_text_is_shown_as_it_is_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "<script>alert(1)</script> \u202egnp"
    mark = HOSTILE.replace("\ud83d", "HALF")
    item = Made("images/p/1", mark, value=1.0, keys={"kind": mark}, read=mark)
    cell = Cell(name.replace("/", ""), "text")
    write_cell(*cell, [item], {"accuracy": Metric(1.0, 1), mark[:60]: Metric(0.5, 1)})
    for path in (cell.generation, cell.scores, cell.result):
        path.write_text(path.read_text().replace("HALF", r"\ud83d"))
    answered(cell, {"question": HOSTILE, "raw": HOSTILE})
    main([])
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e"} & {*printed}
    for page in ("report/index.html", "report.html"):
        found = Site(output_root() / page)
        assert "<script>alert" not in found.page.read_text() and "<!--" not in found.page.read_text()
        [shown] = found.items(cell.model, "text").values()
        assert shown["detail"] == {"expected": HOSTILE, "read": HOSTILE}
        assert [(one["question"], one["reply"]) for one in shown["answers"]] == [(HOSTILE, HOSTILE)]
        assert found.prompts("text")["rows"][0]["prompt"] == HOSTILE
        assert mark[:60].replace("HALF", "\ud83d") in found.cell(cell.model, "text")["figures"]
    for path in (output_root() / "report/data").rglob("*.js"):
        assert "<" not in path.read_text()


# ---- answers, and the command


def answered(cell: Cell, *replies: dict[str, Any]) -> None:
    given = {"item": "images/p/1", "status": "ok", "evaluator": "ppocr-v4"}
    cell.judgements.write_text("".join(json.dumps(given | one) + "\n" for one in replies))


def with_points(cell: Cell, *points: float) -> None:
    lines = [json.loads(line) for line in cell.scores.read_text().splitlines()]
    lines[0]["points"] = [{"values": {"met": one}, "keys": {}} for one in points]
    cell.scores.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_questions_with_their_answers_come_wrong_ones_first() -> None:
    cell = write_cell("a", "text", TWO, HALF)
    answered(
        cell,
        {"question": "vqa/2", "raw": "no, it does not", "parsed": "no"},
        {"question": "vqa/1", "raw": "of an image before", "parsed": "no"},
        {"question": "vqa/10", "raw": "yes", "parsed": "yes"},
        {"question": "vqa/1", "raw": "yes", "parsed": "yes"},
        {"question": "vqa/1", "raw": "another judge", "parsed": "no", "evaluator": "somebody else"},
    )
    with_points(cell, 1, 0, 0.75)
    answers = reported().items("a", "text")["images/p/1"]["answers"]
    assert [(one["question"], one["reply"], one["score"]) for one in answers] == [
        ("vqa/2", "no, it does not", 0.0),
        ("vqa/1", "yes", 1.0),
        ("vqa/10", "yes", 0.75),
    ]
    assert (answers[0]["value"], answers[0]["who"], "value" in answers[1]) == ("no", "ppocr-v4", False)


def test_other_evaluators_have_items_of_their_own_with_the_same_images() -> None:
    cell = write_cell("a", "text", TWO, HALF)
    other = cell.folder / "evaluators/second"
    other.mkdir(parents=True)
    raw = json.loads(cell.result.read_text())
    raw["evaluator"] |= {"id": "second"}
    (other / "result.json").write_text(json.dumps(raw))
    (other / "scores.jsonl").write_text(cell.scores.read_text().replace("ppocr-v4", "second"))
    site = reported()
    first, second = site.index["cells"]
    assert site.index["benchmarks"][0]["cells"] == [0, 1]
    assert (first["root"], first["path"]) == (second["root"], second["path"]) == (0, "a/text")
    items = [site.part(f"cells/{one['folder']}/items") for one in (first, second)]
    assert [one["evaluator"] for one in items] == ["ppocr-v4", "second"]
    assert [one["values"] for one in items[1]["items"]] == [[1.0], [0.0]]


# ---- folders, and one file


def test_the_report_of_two_folders_tells_their_models_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [tmp_path / name for name in ("monday run", "tuesday")]
    for place, value in zip(places, (0.25, 0.75), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IMAGEEVALKIT_OUTPUT", str(place))
            write_cell("both", "text", TWO, {"accuracy": Metric(value, 2)})
            write_cell(f"only {place.name}", "text", TWO, HALF)
            write_cell("both+mine-0123abcd", "text", TWO, HALF)
            for step in (1000, 200):
                write_cell(f"run@{step}", "text", TWO, HALF)
    report_of(places)
    [page] = output_root().glob("comparisons/*/report/index.html")
    site = Site(page)
    names = {one["model"] for one in site.index["cells"]}
    assert names == {
        *("both (monday run)", "both (tuesday)", "only monday run", "only tuesday"),
        *("both (monday run)+mine-0123abcd", "both (tuesday)+mine-0123abcd"),
        *(f"run ({place.name})@{step}" for place in places for step in (200, 1000)),
    }
    assert [(one["run"], [point["step"] for point in one["points"]]) for one in site.index["curves"]] == [
        ("run (monday run)", [200, 1000]),
        ("run (tuesday)", [200, 1000]),
    ]
    assert site.cell("both (tuesday)", "text")["figures"]["accuracy"]["value"] == 0.75
    assert "both (tuesday)" in capsys.readouterr().out
    for one in site.index["cells"]:
        items = site.part(f"cells/{one['folder']}/items")["items"]
        root, folder = map(urllib.parse.unquote, (site.index["roots"][one["root"]], one["path"]))
        path = page.parent / root / folder / items[0]["file"]
        assert path.is_file(), "links lead to the images"
    assert not list(tmp_path.glob("*/report")), "what is read is left alone"


def test_the_command_writes_the_report_of_result_files_alone(output: Path, tmp_path: Path) -> None:
    write_cell("a", "text", TWO, HALF)
    one = eval_here("--report", "--report_mb", "0.001")
    assert one.status == 0 and f"report: {output}/report/index.html" in one.said, one
    assert "0.001 MB" in (output / "report.html").read_text()
    shutil.copytree(output, tmp_path / "older")
    two = eval_here("--report", output, tmp_path / "older")
    assert two.status == 0, two
    [page] = output.glob("comparisons/*/report/index.html")
    assert [one["href"] for one in Site(page).index["comparisons"]] == ["../comparison.html"]
    wrong = eval_here("--report", "--ds_names", "text")
    assert wrong.status == 2 and "--report runs nothing: leave out --ds_names" in wrong.error
