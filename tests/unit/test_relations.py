"""Which relation two metrics have, how certain that is, and the files that say so."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from imageevalkit.common.errors import ExitStatus, UserError
from imageevalkit.extras.relations import files
from imageevalkit.extras.relations.__main__ import main as select
from imageevalkit.extras.relations.recognition import Points, decide, find_relations, statistics
from imageevalkit.extras.relations.relations import (
    KINDS,
    PRESETS,
    Pair,
    Relations,
    Scored,
    Settings,
    Thresholds,
)
from imageevalkit.plan.benchmarks import checked
from imageevalkit.store.cell import Cell
from tests.support.cells import Made, write_items
from tests.support.official_programs import run_program

DIMENSIONS = ["IQ-R", "IQ-O", "IQ-A", "TA-C", "TA-R", "TA-S", "D-K", "D-A", "R-T", "R-B"]
ABSENT = [("D-A", "R-T"), ("D-A", "R-B"), ("R-T", "R-B")]
PAIRS = [pair for pair in combinations(DIMENSIONS, 2) if pair not in ABSENT]
_OFFICIAL = ("fesvhtr/TRIG", "e43923c30f7a64f742bc42d7bacc5ebd941412e2", "trig/evaluation/relationator.py")
PAPER: dict[str, Any] = {"preset": "paper"}


def scored(one: str, other: str, points: Sequence[tuple[float, float]], prompts: int = 0) -> list[Scored]:
    """An item for each point; with ``prompts``, so many of them are shared by all."""
    return [
        Scored(f"{one}_{other}_{n}", f"{one}_{other} {n % prompts if prompts else n}", {one: x, other: y})
        for n, (x, y) in enumerate(points)
    ]


def relation(points: Sequence[tuple[float, float]], prompts: int = 0, **settings: Any) -> Pair:
    found, _ = find_relations(scored("x", "y", points, prompts), ["x", "y"], Settings(**settings), "judge")
    return found.pairs[0]


# ---- the decision

TILTED = [(round(0.5 + 0.02 * n, 2), 0.7 if n < 9 else 0.2) for n in range(10)]
TILTED_BACK = [(round(0.6 + 0.02 * n, 2), 0.3 if n < 9 else 0.75) for n in range(10)]
RISING = [(0.55, 0.5), (0.6, 0.55), (0.65, 0.6), (0.7, 0.65), (0.75, 0.7), (0.78, 0.72)]
TWELVE = [(round(0.51 + 0.02 * n, 2), 0.6 if n < 7 else 0.55) for n in range(12)]


@pytest.mark.parametrize(
    ("points", "settings", "code"),
    [
        pytest.param([(0.9, 0.9), (0.85, 0.95), (0.9, 0.7), (0.6, 0.9), (0.8, 0.9)], {}, 0, id="A"),
        pytest.param([(0.1, 0.4), (0.2, 0.49), (0.9, 0.3), (0.6, 0.7), (0.5, 0.2)], {}, 3, id="B"),
        pytest.param(TILTED, {}, -2, id="C"),
        pytest.param(TILTED_BACK, {}, 2, id="C'"),
        pytest.param(
            [(0.6, 0.7), (0.7, 0.6), (0.55, 0.75), (0.65, 0.65), (0.75, 0.5), (0.52, 0.78)], {}, 1, id="D"
        ),
        pytest.param(RISING, {}, -1, id="E"),
        pytest.param([(0.6, 0.6)] * 9, {}, -1, id="F: constant, so that ρ is not defined"),
        pytest.param(TWELVE, {}, 2, id="G"),
        pytest.param(TWELVE, PAPER, 1, id="G by the paper"),
        pytest.param([(0.6, 0.6)] * 9, {"correlation": "pearson"}, 1, id="Pearson of a constant is 0"),
    ],
)
def test_the_decision_of_the_worked_examples(
    points: list[tuple[float, float]], settings: dict[str, Any], code: int
) -> None:
    assert relation(points, **settings).code == code


def test_a_ratio_at_the_threshold_is_no_tilt() -> None:
    # 6 : 4 is 1.5, which is not more than the paper's 1.5
    assert relation(TILTED, **PAPER).code == 1
    assert relation(TILTED, preset="paper", dominance_ratio=0.67).code == -2


def plain_code(points: Sequence[tuple[float, float]], limits: Thresholds, kind: str) -> int:
    """The relation by the words of the rule: lists, and fractions where a point may lie on the line."""
    n = len(points)
    high = [x > limits.synergy and y > limits.synergy for x, y in points]
    low = [x < limits.bottleneck and y < limits.bottleneck for x, y in points]
    if sum(high) / n >= limits.synergy_density:
        return 0
    if sum(low) / n >= limits.bottleneck_density:
        return 3
    rest = [(Fraction(str(x)), Fraction(str(y))) for k, (x, y) in enumerate(points) if not high[k] | low[k]]
    if len(rest) >= 10:
        mean_x, mean_y = (sum(column) / len(rest) for column in zip(*rest, strict=True))
        spread = sum((x - mean_x) ** 2 for x, _ in rest)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in rest) / spread if spread else 0
        above = sum(y > mean_y + slope * (x - mean_x) for x, y in rest)
        below = len(rest) - above
        ratio = max(above, below) / min(above, below) if min(above, below) else float("inf")
        if ratio > 1 / limits.dominance_ratio:
            return -2 if above > below else 2
    measure = {"spearman": plain_spearman, "pearson": plain_pearson, "pareto": plain_pareto}[kind]
    return 1 if measure(points) < limits.tradeoff_corr else -1


def plain_pearson(points: Sequence[tuple[float, float]], constant: float = 0.0) -> float:
    xs, ys = zip(*points, strict=True)
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        return constant
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    product = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return product / (sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys)) ** 0.5


def plain_spearman(points: Sequence[tuple[float, float]]) -> float:
    def ranks(values: Sequence[float]) -> list[float]:
        return [
            sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
            for value in values
        ]

    xs, ys = zip(*points, strict=True)
    return plain_pearson(list(zip(ranks(xs), ranks(ys), strict=True)), float("nan"))


def plain_pareto(points: Sequence[tuple[float, float]]) -> float:
    front = sorted(
        (x, y)
        for k, (x, y) in enumerate(points)
        if not any(k != m and u >= x and v >= y for m, (u, v) in enumerate(points))
    )
    area = sum((u - x) * (y + v) / 2 for (x, y), (u, v) in pairwise(front))
    largest = max(x for x, _ in points) * max(y for _, y in points)
    return area / largest if len(front) > 1 and largest > 0 else 0.0


def random_points(draw: random.Random) -> list[tuple[float, float]]:
    """Returns points of many shapes: around a place or along a line, in thousandths or in a few grades with
    many ties.
    """
    n, grades = draw.randint(1, 45), draw.choice([2, 4, 10, 1000])
    place, slope, noise = draw.uniform(0.1, 1), draw.uniform(-1.2, 1.2), draw.choice([0.0, 0.05, 0.2, 0.4])
    points = []
    for _ in range(n):
        x = place + draw.uniform(-0.4, 0.4)
        y = place + slope * (x - place) + draw.gauss(0, noise)
        points.append(
            (round(min(1, max(0, x)) * grades) / grades, round(min(1, max(0, y)) * grades) / grades)
        )
    return points


def random_settings(draw: random.Random) -> dict[str, Any]:
    own = {
        "synergy": 0.7,
        "bottleneck": 0.45,
        "synergy_density": 0.25,
        "bottleneck_density": 0.6,
        "dominance_ratio": 0.5,
        "tradeoff_corr": 0.3,
    }
    some = {name: value for name, value in own.items() if draw.random() < 0.2}
    kind = draw.choice(["spearman", "pearson", "pareto"])
    return {"preset": draw.choice(["official", "paper"]), "correlation": kind, "resamples": 100, **some}


def test_random_cases_agree_with_the_rule_in_plain_words() -> None:
    draw, seen = random.Random(20), set()
    for case in range(400):
        points, settings = random_points(draw), Settings(**random_settings(draw))
        found, _ = find_relations(scored("x", "y", points), ["x", "y"], settings, "judge")
        expected = plain_code(points, settings.thresholds, settings.correlation)
        assert found.pairs[0].code == expected, (case, points, settings)
        seen.add((expected, settings.correlation))
    # a rule that is never reached is not compared
    assert {code for code, _ in seen} == set(KINDS)
    assert {(1, "pareto"), (-1, "pareto"), (1, "pearson"), (-1, "pearson")} <= seen


# ---- how certain it is


def test_a_resample_is_judged_as_its_points_repeated() -> None:
    """The bootstrap weighs points and never builds a resample: here some are built."""
    draw, random_of = random.Random(3), numpy.random.default_rng(3)
    for _ in range(40):
        points, settings = random_points(draw), Settings(**random_settings(draw))
        if settings.correlation == "pareto":  # an item drawn twice is no second item
            settings = Settings(**{**vars(settings), "correlation": "spearman"})
        drawn = random_of.integers(0, len(points), (4, len(points)))
        weights = numpy.stack([numpy.bincount(one, minlength=len(points)) for one in drawn]).astype(float)
        x, y = numpy.array(points).T
        of_weights = statistics(
            Points(x, y, numpy.arange(len(x))), weights, settings.thresholds, settings.correlation
        )
        assert decide(of_weights, settings.thresholds).tolist() == [
            plain_code([points[k] for k in one], settings.thresholds, settings.correlation) for one in drawn
        ]


def test_a_clear_relation_is_certain_and_one_at_its_threshold_is_not() -> None:
    draw = random.Random(1)
    clear = [(draw.uniform(0.85, 1), draw.uniform(0.85, 1)) for _ in range(300)]
    # 40 % of the points are in the region: a resample has more or fewer of them
    borderline = [*clear[:120], *((0.6 + 0.001 * n, 0.6 + 0.001 * n) for n in range(180))]
    assert relation(clear).codes == {"0": 1.0}
    found = relation(borderline)
    assert found.code == 0
    assert found.certainty == pytest.approx(0.5, abs=0.1)
    assert sum(found.codes.values()) == pytest.approx(1)
    assert relation(borderline).codes == found.codes  # a fixed seed


def test_images_of_one_prompt_are_drawn_together() -> None:
    draw = random.Random(5)
    high = [draw.random() < 0.5 for _ in range(10)]
    points = [(0.9, 0.9) if high[n % 10] else (0.6 + 0.001 * n, 0.6 + 0.001 * n) for n in range(200)]
    apart, together = relation(points), relation(points, prompts=10)
    assert apart.code == together.code
    assert apart.certainty and together.certainty
    assert together.certainty < apart.certainty - 0.05


def test_images_of_too_few_prompts_have_no_certainty() -> None:
    """All bootstrap samples of one prompt are equal, so any relation would seem certain."""
    points = [(0.9, 0.9)] * 12
    assert relation(points, prompts=1).certainty is None
    assert relation(points, prompts=9).certainty is None
    assert relation(points, prompts=10).certainty == 1


def planted(kind: int, n: int, draw: random.Random) -> list[tuple[float, float]]:
    """``n`` points whose relation is known from how they are made."""

    def clip(value: float) -> float:
        return round(min(1, max(0, value)), 3)

    tail = [draw.expovariate(6) - 1 / 6 for _ in range(n)]
    x = [draw.uniform(0.5, 0.95) for _ in range(n)]
    return {
        0: [(clip(draw.gauss(0.9, 0.07)), clip(draw.gauss(0.9, 0.07))) for _ in x],
        3: [(clip(draw.gauss(0.35, 0.1)), clip(draw.gauss(0.35, 0.1))) for _ in x],
        # a line with a long tail above: most points are below it
        2: [(clip(u), clip(0.62 + e)) for u, e in zip(x, tail, strict=True)],
        -2: [(clip(u), clip(0.62 - e)) for u, e in zip(x, tail, strict=True)],
        1: [(clip(draw.uniform(0.45, 0.85)), clip(draw.uniform(0.45, 0.85))) for _ in x],
        -1: [(clip(u), clip(u + draw.gauss(0, 0.04))) for u in x],
    }[kind]


def plant() -> tuple[dict[tuple[str, str], int], list[Scored]]:
    """A relation for each pair of TRIG's text-to-image task, and items of its size and kind."""
    draw = random.Random(7)
    kinds = [0, 3, 2, -2, 1, -1] * 7
    draw.shuffle(kinds)
    known, items = dict(zip(PAIRS, kinds, strict=True)), list[Scored]()
    for pair, kind in known.items():
        items += scored(*pair, planted(kind, draw.choice([300, 500]), draw))
    return known, items


@pytest.fixture(scope="module")
def trig() -> tuple[dict[tuple[str, str], int], Relations]:
    known, items = plant()
    relations, _ = find_relations(items, DIMENSIONS, Settings(resamples=100), "judge")
    return known, relations


def test_planted_relations_are_recovered_with_certainty(
    trig: tuple[dict[tuple[str, str], int], Relations],
) -> None:
    known, relations = trig
    assert len(relations.pairs) == 42
    assert {pair.name: pair.code for pair in relations.pairs} == {
        f"{one}_{other}": kind for (one, other), kind in known.items()
    }
    certainties = [pair.certainty or 0 for pair in relations.pairs]
    assert min(certainties) > 0.6
    assert sum(certainties) / len(certainties) > 0.95


# ---- the official files


def test_the_official_files_have_the_official_form(
    trig: tuple[dict[tuple[str, str], int], Relations],
) -> None:
    known, relations = trig
    result = json.loads(files.texts(relations)["result.json"])
    assert list(result) == [
        *("metrics", "correlation_matrix", "quadrant_analysis", "relationship_codes", "insights"),
    ]
    assert result["metrics"] == [f"{one}_{other}" for one, other in PAIRS]
    matrix = result["correlation_matrix"]
    assert [len(row) for row in matrix] == [42] * 42
    assert all(matrix[n][m] == 0 for n in range(42) for m in range(42) if n != m)
    assert [matrix[n][n] for n in range(42)] == [pair.correlation for pair in relations.pairs]
    codes = result["relationship_codes"]
    names = sorted(DIMENSIONS)
    assert list(codes) == [
        name for one, other in combinations(names, 2) for name in (f"{one}_{other}", f"{other}_{one}")
    ]
    for (one, other), kind in known.items():
        assert codes[f"{one}_{other}"] == kind
        assert codes[f"{other}_{one}"] == (-kind if abs(kind) == 2 else kind)
    assert [codes[f"{one}_{other}"] for one, other in ABSENT] == [-1, -1, -1]
    assert [insight["metrics"] for insight in result["insights"]] == [
        [one, other] for one, other in combinations(names, 2)
    ]
    assert {frozenset(insight) for insight in result["insights"]} == {
        frozenset({"type", "metrics", "description", "suggestion"})
    }
    of_code = {0: "synergy", 1: "tradeoff", 2: "dominance", -2: "dominance", 3: "bottleneck", -1: "undefined"}
    assert all(one["type"] == of_code[codes["_".join(one["metrics"])]] for one in result["insights"])


def test_the_official_program_writes_the_same_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of the means of pairs, which are rounded to floats, would be 0.465."""
    few = {("IQ-R", "IQ-O"): [(0.5, 0.095)], ("IQ-O", "TA-C"): [(0.411, 0.5), (0.651, 0.3), (0.705, 0.4)]}
    table = table_of(few)
    assert [row.split(",")[1] for row in table.splitlines() if row.startswith("IQ-O")] == ["0.466"]

    draw = random.Random(6)
    many = {pair: planted(draw.choice([0, 3, 1]), 30, draw) for pair in PAIRS}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/result").mkdir(parents=True)
    absent = ("seaborn", "networkx", "sklearn", "sklearn.manifold", "sklearn.linear_model")
    kernels = ("sklearn.gaussian_process", "sklearn.gaussian_process.kernels")
    stand_in: Any = SimpleNamespace(TSNE=None, LinearRegression=Line, RBF=None)
    modules: dict[str, Any] = dict.fromkeys((*absent, *kernels), stand_in)
    program = run_program(*_OFFICIAL, monkeypatch, **modules)["Relationator"]
    for points in (few, many):
        of_pair = {f"{one}_{other}": dict(enumerate(both)) for (one, other), both in points.items()}
        (tmp_path / "data/result/demo.json").write_text(json.dumps(of_pair))
        program({"relation": {"metric": "spearman_corr"}})()
        [theirs] = tmp_path.rglob("relationship_codes.csv")
        assert means_in(table_of(points)) == means_in(theirs.read_text())


def table_of(points: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> str:
    """Our table of the relations between the dimensions of some pairs with such points."""
    items = [one for pair, of_pair in points.items() for one in scored(*pair, of_pair)]
    names = [name for name in DIMENSIONS if any(name in pair for pair in points)]
    return files.official_table(find_relations(items, names, Settings(resamples=100), "judge")[0])


def means_in(table: str) -> list[list[str]]:
    """The fields on the diagonal and below it."""
    return [row.split(",")[: n + 2] for n, row in enumerate(table.splitlines()[1:])]


class Line:
    """In place of scikit-learn's linear regression: what the official program needs to decide about a tilt."""

    def fit(self, x: Any, y: Any) -> Line:
        self.slope, self.at_zero = numpy.polyfit(x[:, 0], y, 1)
        return self

    def predict(self, x: Any) -> Any:
        return self.slope * x[:, 0] + self.at_zero


# ---- what a user gives


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"presett": "paper"}, "did you mean 'preset'?"),
        ({"synergy": 1.4}, "synergy must be from 0 to 1, not 1.4"),
        ({"bottleneck": 0.9}, "bottleneck (0.9) must not be above synergy (0.8)"),
        ({"tradeoff_corr": "high"}, "tradeoff_corr must be a number or null, not 'high'"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as told:
        checked(Settings, settings, "--relations_kwargs")
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_presets_are_the_official_file_and_the_paper() -> None:
    assert PRESETS["official"] == Thresholds(0.8, 0.5, 0.4, 0.4, 0.8, 0.6)
    assert 1 / PRESETS["paper"].dominance_ratio == pytest.approx(1.5)
    assert PRESETS["paper"].tradeoff_corr == 0.7
    assert Settings(preset="paper", synergy=0.9).thresholds == Thresholds(0.9, 0.5, 0.4, 0.4, 1 / 1.5, 0.7)


GRADES = [Scored(str(n), str(n), {"realism": n % 3, "beauty": n % 2, "n/2": 0.5}) for n in range(20)]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (["realsm", "beauty"], "there is no metric 'realsm' of items (did you mean 'realism'?)"),
        (["realism", "beauty"], "relations are of scores from 0 to 1, but realism of item 2 is 2"),
        (["beauty", "beauty/2"], "a metric is named twice"),
        (["beauty", "realism/0"], "'0' of 'realism/0' is no scale; name its scale behind a slash: stars/5"),
    ],
)
def test_what_cannot_be_related_is_one_line(metrics: list[str], says: str) -> None:
    with pytest.raises(UserError) as told:
        find_relations(GRADES, metrics, Settings(), "judge")
    assert says in str(told.value)


# ---- balanced samples


STEERING = "\u202e \x85 \u9f8d \x1b[31m \U0001f600"


@pytest.fixture
def cell() -> Cell:
    """Five images with two scores each; the last has been made again since."""
    cell = Cell("org/model", "bench")
    made = [Made(f"images/{n}", f"prompt {n}" + STEERING * (n == 3)) for n in range(5)]
    write_items(cell, made)
    shas = {
        record["item"]: record["image_sha256"]
        for record in map(json.loads, cell.generation.read_text().strip().split("\n"))
    }
    values = [(0.9, 1.6), (0.9, 1.2), (0.7, 1.4), (0.71, 1.4), (0.9, 1.8)]
    lines = [
        {
            "item": item.id,
            "status": "judged",
            "values": {"look": look, "truth": truth},
            "keys": {},
            "detail": {},
            "image_sha256": "0" * 64 if n == 4 else shas[item.id],
            "attempted": True,
        }
        for n, (item, (look, truth)) in enumerate(zip(made, values, strict=True))
    ]
    cell.scores.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cell.result.write_text("{}")
    return cell


def test_balanced_samples_are_good_in_both_and_about_equally_so(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["relations", "org/model/bench", "look", "truth/2", "--above", "0.7", "0.6", "--within", "0.1"]
    monkeypatch.setattr("sys.argv", words)
    assert select() == ExitStatus.COMPLETE
    told = capsys.readouterr()
    samples = [json.loads(line) for line in told.out.splitlines()]
    # 0.9 and 0.8 differ by 0.1; 0.7 is not above 0.7; 0.9 and 0.6 differ too much
    assert [sample["item"] for sample in samples] == ["images/0", "images/3"]
    assert [sample["prompt"] for sample in samples] == ["prompt 0", f"prompt 3{STEERING}"]
    assert not {"\u202e", "\x85", "\x1b"} & {*told.out}
    assert "\u9f8d" in told.out
    assert samples[0]["scores"] == {"look": 0.9, "truth": 0.8}
    assert Path(samples[0]["image"]).is_file()
    assert told.err.strip() == "2 samples of 4 images with both scores"
