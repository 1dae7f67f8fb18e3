"""HPSv2: the prompts, the means of styles, what the official program prints."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hpsv2.benchmark import HPSv2, HPSv2Settings
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, measure
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item
from tests.support.function_judge import items, scores_of
from tests.support.mirror import KIT, official_source, use_official_data


def scored(benchmark: HPSv2, styles: dict[str, list[float]]) -> Scores:
    made, said = list[Item](), dict[str, str]()
    for style, values in styles.items():
        for n, value in enumerate(values):
            id, data = f"images/{style}/{n:05d}", {"style": style, "index": n}
            made.append(Item(id, Cell("m", "hpsv2").folder / f"{id}.jpg", 42, "a cup", None, data))
            said[id] = json.dumps({"v2.1": value, "v2.0": value / 2})
    return scores_of(benchmark, made, lambda asked: said[asked.item])


def test_a_style_is_the_mean_of_means_of_80() -> None:
    values = {"anime": [20.0] * 80 + [30.0]}
    metrics = HPSv2().metrics(scored(HPSv2(), values))
    assert (metrics["v2.1/anime"].value, metrics["v2.0/anime"].value) == (25.0, 12.5)
    assert metrics["v2.1"].value == pytest.approx(1630 / 81)
    corrected = HPSv2(HPSv2Settings(rules="corrected"))
    assert corrected.metrics(scored(corrected, values))["v2.1/anime"].value == pytest.approx(1630 / 81)


def test_the_official_lines_print_our_file() -> None:
    import random

    import numpy as np

    source = official_source(*KIT, "benchmarks/HPSv2/hpsv2/evaluation.py")
    whole = source[source.index("def evaluate_benchmark(") : source.index("def evaluate_benchmark_all(")]
    body = whole[whole.index("    print('-----------benchmark score") :]
    draw = random.Random(7)
    styles = {
        style: [draw.uniform(15, 35) for _ in range(count)]
        for style, count in (("anime", 200), ("concept-art", 80), ("paintings", 161), ("photo", 7))
    }
    space: dict[str, Any] = {"np": np, "score": {"images": styles}}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("if True:\n" + body, "official", "exec"), space)
    files = HPSv2().official_files(scored(HPSv2(), styles))
    assert files["v2.1.txt"] == out.getvalue()
    assert files.keys() == {"v2.1.txt", "v2.0.txt"}


def test_all_prompts_in_the_official_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_official_data("hpsv2", tmp_path, monkeypatch)
    made = items(HPSv2())
    assert len(made) == 3200 and {one.seed for one in made} == {42}
    assert len({one.prompt for one in made}) == 3172
    assert {one.data["style"] for one in made[:4]} == {"anime", "concept-art", "paintings", "photo"}
    [asked] = HPSv2().questions(made[0], Picture(made[0].path, "ab" * 32), Answers({}))
    assert asked.text == made[0].prompt and not asked.choices
    one = HPSv2(HPSv2Settings(antialias=False))
    assert one.headline == ("v2.1", "v2.0") and one.identity == {"antialias": False}
    assert one.judge_options == {"antialias": False, "weights": {}}


@pytest.mark.parametrize("text", ["", '{"v2.1": 27.5}', '{"v2.1": 27.5, "v2.0": NaN}'])
def test_what_is_no_pair_of_numbers_is_no_score(text: str) -> None:
    asked = measure("preference", "a cup")
    with pytest.raises(Unparsed):
        HPSv2().parse(asked, Answer(asked, text))


def test_where_images_lack_the_means_are_those_of_the_official_program() -> None:
    """It leaves their prompts out: borders of chunks move, and the last chunk of a style counts as much as another."""
    values = {"anime": [20.0] * 80 + [30.0] * 70, "photo": [float(n) for n in range(40)]}
    scores = scored(HPSv2(), values)
    gaps = Scores([one if n % 9 else one._replace(score=None) for n, one in enumerate(scores.items)])
    official, corrected = (HPSv2(HPSv2Settings(rules=rules)) for rules in ("official", "corrected"))
    assert official.official_headline == () and official.headline == ("v2.1", "v2.0")
    left = [
        [value for n, value in pairs if n % 9]
        for pairs in ([*enumerate(values["anime"])], [*enumerate(values["photo"], 150)])
    ]
    chunks = [left[0][:80], left[0][80:]]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    found = official.metrics(gaps)
    assert found["v2.1/anime"].value == pytest.approx(sum(means) / 2)
    assert found["v2.1"].value == pytest.approx(sum(map(sum, left)) / sum(map(len, left)))
    assert found["v2.1/anime"].n == len(left[0])
    assert corrected.metrics(gaps)["v2.1/anime"].value == pytest.approx(sum(left[0]) / len(left[0]))
    assert official.metrics(Scores([]))["v2.1"].value is None
