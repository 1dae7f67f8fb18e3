"""WISE's three editions: what is asked, which replies have a score, the metrics, the official files and the data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wise.benchmark import Wise, WiseRewrite, WiseVerified
from imageevalkit import assets, registry
from imageevalkit.benchmark.contract import Answers, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.common.errors import CellFailure
from imageevalkit.jobs.plan import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.report import __main__ as report
from imageevalkit.store.cell import Cell, output_root
from imageevalkit.store.items import items_of
from imageevalkit.store.results import Metric, Result, standing
from tests.support.function_judge import evaluate, items, scores_of, use_function_judge, write_images
from tests.support.mirror import use_official_data

EDITIONS: dict[str, type[Wise]] = {cls.name: cls for cls in (Wise, WiseVerified, WiseRewrite)}
NAMES = list(Wise.categories)
DOMAINS = {
    "cultural_common_sense": ("culture",),
    "spatio-temporal_reasoning": ("time", "space"),
    "natural_science": ("biology", "physics", "chemistry"),
}
SYSTEM = "You judge."
USER = 'Protocol.\nPROMPT: "{Prompt}"\nEXPLANATION: "{Explanation}"\nAnswer.'
THREE = "Consistency: {}\nRealism: 1\nAesthetic Quality: 0"
ASK = Question("score", (), Sampling(1))

MakeWise = Callable[..., Wise]


@pytest.fixture
def wise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWise:
    """Makes an edition on prompts of our own in the shape of the official files, with five subcategories a category."""

    def make(name: str, judge: str = "", **settings: str) -> Wise:
        cls = EDITIONS[name]
        monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
        monkeypatch.setattr(cls, "assets", ())
        data = assets.data_folder(name)
        if not data.exists():
            data.mkdir(parents=True)
            for domain in DOMAINS:
                (data / f"{domain}{cls.suffix}.json").write_text(json.dumps(records(cls, domain)))
        benchmark = registry.make_benchmark(name, settings, judge)
        assert isinstance(benchmark, cls)
        key = f"{cls.program}::build_evaluation_messages#"
        vars(benchmark)["prompts"] = {key + "system": SYSTEM, key + "user": USER}
        return benchmark

    return make


def records(cls: type[Wise], domain: str) -> list[dict[str, object]]:
    """The file of a domain."""
    return [
        {
            "Prompt": f"prompt {prompt_id}",
            "Explanation": f"it means {prompt_id}",
            "Category": name.title(),
            # sorted by subcategory, as the official files partly are
            "Subcategory": f"{name} {5 * n // len(ids)}",
            "prompt_id": prompt_id,
        }
        for name, ids in cls.categories.items()
        if name in DOMAINS[domain]
        for n, prompt_id in enumerate(ids)
    ]


@pytest.fixture(params=list(EDITIONS))
def edition(request: pytest.FixtureRequest, wise: MakeWise) -> Wise:
    """Each of them on prompts of our own."""
    return wise(request.param)


# ---- what is asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "max_tokens", "extra"),
    [
        ("wise", 2000, {}),
        ("wise-rewrite", 2000, {}),
        ("wise-verified", 500, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_the_official_request(wise: MakeWise, name: str, max_tokens: int, extra: dict[str, object]) -> None:
    benchmark = wise(name)
    [item] = items(benchmark, 1)
    picture = Picture(item.path, "a" * 64)
    [question] = benchmark.questions(item, picture, Answers({}))
    n = item.data["prompt_id"]
    text = f'Protocol.\nPROMPT: "prompt {n}"\nEXPLANATION: "it means {n}"\nAnswer.'
    declared = Picture(item.path, "a" * 64, "image/png", None)
    assert question.messages == (Message("system", (SYSTEM,)), Message("user", (text, declared)))
    assert question.sampling == Sampling(max_tokens, temperature=0.0, seed=None, extra=extra)
    assert benchmark.tries == 3


# ---- which replies have a score: the specification's examples, and what the official functions say to odd ones --


def read(benchmark: Wise, reply: str) -> Mapping[str, float] | None:
    """The scores in ``reply``; None: not all are there."""
    try:
        return benchmark.parse(ASK, Answer(ASK, reply))
    except Unparsed:
        return None


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Score: 1", 1),
        ("I give Score: 0. Later Score: 1", 0),
        ("Score: 0.5", 0),
        ("***Score***: 1", None),
        ("**Score:** 1", None),
        ("Score: 10", None),
        ("Score: 2\nScore: 1", 1),
        ("Score: **1**", None),
        ("Score 1a", None),
        ("ſcore: 1", 1),
        ("0\n1", None),
        ("Score: 10\n\n 1\t\nbecause", 1),
        ("<think>Score: 0</think>\n\nScore: 1\n", 1),
        ("<think>Score: 0", 0),
    ],
)
def test_verified_replies(reply: str, score: int | None) -> None:
    assert read(WiseVerified(), reply) == (None if score is None else {"score": score})


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("<think>Score: 0</think>\n\nScore: 1\n", "Score: 1"),
        ("Score: 0</think>\n Score: 1", "Score: 0Score: 1"),
        ("<think>Score: 0", "<think>Score: 0"),
    ],
)
def test_thoughts_are_removed(reply: str, text: str) -> None:
    assert WiseVerified().clean(reply) == text


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ("Consistency: 2\nRealism: 1\nAesthetic Quality: 0", (2, 1, 0)),
        ("2\n1\n0", (2, 1, 0)),
        ("3\n2\n1\n0", (2, 1, 0)),
        ("2\r\n 1 \r\n\r\n0", (2, 1, 0)),
        ("2\n1", None),
        ("**Consistency**: 9\nRealism: 12\nAesthetic Quality: 1.5", (9, 1, 1)),
        ("Inconsistency: 0 Realism: 1 Aesthetic Quality: 2", (0, 1, 2)),
        ("**Consistency:** 2\n**Realism:** 1\n**Aesthetic Quality:** 0", None),
    ],
)
def test_legacy_replies(reply: str, scores: tuple[int, int, int] | None) -> None:
    assert read(Wise(), reply) == (None if scores is None else dict(zip(Wise.parts, scores, strict=True)))


@pytest.mark.parametrize(
    ("cls", "reply", "says"),
    [
        # one label rules the bare lines out
        (Wise, "Consistency: 2\n1\n1\n1", "no realism, aesthetic_quality in 'Consistency: 2 1 1 1'"),
        (WiseVerified, "<think>Score: 1</think>\nI cannot\nsay", "no score in 'I cannot say'"),
    ],
)
def test_what_a_reply_lacks_is_told(cls: type[Wise], reply: str, says: str) -> None:
    with pytest.raises(Unparsed) as caught:
        cls().parse(ASK, Answer(ASK, reply))
    assert str(caught.value).startswith(says)


# ---- metrics: published figures, what the official calculators printed, and what missing scores do to them ------


def scores(benchmark: Wise, reply_of: Callable[[int], str | None]) -> Scores:
    """Returns the scores of a run in which the judge replied ``reply_of(prompt_id)``; None: there is no image."""
    return scores_of(
        benchmark, items(benchmark), lambda question: reply_of(int(question.item.removeprefix("images/")))
    )


def rounded(found: Mapping[str, Metric], names: Sequence[str], digits: int) -> list[float]:
    return [round(value, digits) for name in names if (value := found[name].value) is not None]


FLUX = {  # FLUX.1-dev in the paper's tables 3-5: sums by category, and their overall
    "consistency": ([298, 161, 155, 48, 77, 41], 183.30),
    "realism": ([585, 269, 181, 179, 161, 146], 351.60),
    "aesthetic_quality": ([582, 275, 190, 154, 156, 127], 347.69),
}
FLUX_REWRITE = {  # tables 6-8
    "consistency": ([586, 214, 204, 125, 134, 133], 336.47),
    "realism": ([637, 285, 197, 167, 160, 148], 376.10),
    "aesthetic_quality": ([640, 282, 194, 162, 159, 133], 374.30),
}


def replies_with_sums(sums: Mapping[str, tuple[list[int], float]]) -> dict[int, str | None]:
    """A reply about every prompt, whose scores of 0-2 add up to ``sums``."""
    replies: dict[int, str | None] = {}
    for n, ids in enumerate(Wise.categories.values()):
        size = len(ids)
        for k, prompt_id in enumerate(ids):
            parts = {part: (k + 1) * of[n] // size - k * of[n] // size for part, (of, _) in sums.items()}
            replies[prompt_id] = "\n".join(f"{part.replace('_', ' ')}: {p}" for part, p in parts.items())
    return replies


def replies_with_correct(counts: Sequence[int]) -> dict[int, str | None]:
    """Verified replies with ``counts`` of 1 per category."""
    return {
        prompt_id: f"Score: {int(k < count)}"
        for ids, count in zip(WiseVerified.categories.values(), counts, strict=True)
        for k, prompt_id in enumerate(ids)
    }


def test_paper_flux_dev(wise: MakeWise) -> None:
    benchmark = wise("wise")
    found = benchmark.metrics(scores(benchmark, replies_with_sums(FLUX).get))
    assert rounded(found, NAMES, 5) == [0.47975, 0.58084, 0.61541, 0.424, 0.5085, 0.353]
    assert rounded(found, ["overall", "overall_official", "overall_missing_as_0"], 5) == [0.4993] * 3
    assert found["overall"].n == 1000


@pytest.mark.parametrize(
    ("name", "sums", "overall"), [("wise", FLUX, 0.50), ("wise-rewrite", FLUX_REWRITE, 0.73)]
)
def test_paper_sums(
    wise: MakeWise, name: str, sums: Mapping[str, tuple[list[int], float]], overall: float
) -> None:
    benchmark = wise(name)
    found = benchmark.metrics(scores(benchmark, replies_with_sums(sums).get))
    assert rounded(found, ["overall"], 2) == [overall]
    for part, (totals, weighted) in sums.items():
        assert rounded(found, [f"{part}_sum/{name}" for name in NAMES], 2) == totals
        assert rounded(found, [f"{part}_sum"], 2) == [weighted]
        assert found[f"{part}_sum/culture"].scale == 800
        assert found[f"{part}/culture"] == Metric(totals[0] / 400, 400, None, 2.0)
        assert found[part].value == pytest.approx(sum(totals) / 1000), "weights are the categories' shares"


def test_leaderboard_nanobanana_pro(wise: MakeWise) -> None:
    benchmark = wise("wise-verified")
    found = benchmark.metrics(scores(benchmark, replies_with_correct([359, 98, 112, 98, 104, 105]).get))
    assert rounded(found, NAMES, 4) == [0.8975, 0.8167, 0.9333, 0.8167, 0.8667, 0.8750]
    assert rounded(found, ["overall"], 4) == [0.8760]
    assert found["subcategory/space 0"].n == 24
    assert not [name for name in found if "sum" in name or "consistency" in name]


def digit(prompt_id: int, of: int) -> int:
    return (prompt_id * prompt_id * 31 + prompt_id * 7 + prompt_id // 90) % of


def legacy_reply(prompt_id: int) -> str:
    consistency = min(2, digit(prompt_id, 11) * (prompt_id // 150 + 1) // 12)
    return (
        f"Consistency: {consistency}\nRealism: {digit(prompt_id + 1, 3)}\n"
        f"Aesthetic Quality: {digit(prompt_id + 2, 3)}"
    )


def verified_reply(prompt_id: int) -> str:
    return f"Score: {int(digit(prompt_id, 11) < 2 + prompt_id // 130)}"


# printed by calculate_verified.py and WISE_legacy/Calculate.py (eb51174) for the files that these replies leave
PRINTED = {
    "wise-verified": (verified_reply, "0.18 0.36 0.56 0.60 0.78 0.84 0.45"),
    "wise": (legacy_reply, "0.33 0.56 0.45 0.62 0.56 0.68 0.47"),
    "wise-rewrite": (legacy_reply, "0.33 0.56 0.45 0.62 0.56 0.68 0.47"),
}


def test_what_the_official_calculators_print(edition: Wise) -> None:
    reply, printed = PRINTED[edition.name]
    run = scores(edition, reply)
    found = edition.metrics(run)
    assert edition.metrics(Scores(run.items[::-1])) == found, "the order of the run changes no digit"
    assert " ".join(f"{found[key].value:.2f}" for key in [*NAMES, "overall_official"]) == printed


def test_without_one_score_the_official_program_gives_none(wise: MakeWise) -> None:
    benchmark = wise("wise-verified")
    replies = replies_with_correct([359, 98, 112, 98, 104, 105])
    assert replies[1000] == "Score: 0"
    for lost in (None, "I cannot say"):
        found = benchmark.metrics(scores(benchmark, {**replies, 1000: lost}.get))
        assert found["overall_official"] == Metric(None, 999)
        assert found["chemistry"].value == pytest.approx(105 / 119)
        overall = found["overall"].value
        assert overall == pytest.approx(0.876 - 0.12 * 105 / 120 + 0.12 * 105 / 119), "weights stay"
        assert found["overall_missing_as_0"].value == pytest.approx(0.876)
        assert found["overall_missing_as_0"].n == 1000


# ---- a cell: further tries, scores beyond the scale, who is the official judge -----------------------------------


def evaluate_first(benchmark: Wise, limit: int) -> tuple[Outcome, Result]:
    """Evaluate the first items, each with an image of its own."""
    made = items(benchmark, limit)
    write_images(made)
    return evaluate(benchmark, made, limit)


def test_a_reply_without_score_is_asked_again_twice(wise: MakeWise, monkeypatch: pytest.MonkeyPatch) -> None:
    times: Counter[str] = Counter()

    def say(question: Question) -> str:
        times[question.item] += 1
        if question.item == "images/1":
            return "Score: 0" if times[question.item] == 3 else "Score: maybe"
        return "never" if question.item == "images/401" else "Score: 1"

    use_function_judge(say, monkeypatch)
    outcome, result = evaluate_first(wise("wise-verified"), 12)
    assert times.pop("images/1") == times.pop("images/401") == 3
    assert set(times.values()) == {1}
    assert outcome.state == INCOMPLETE
    assert (result.coverage.judged, result.coverage.unparsed) == (11, 1)
    assert result.headline == [] and result.metrics["overall_official"].value is None
    official = Cell("m", "wise-verified").official
    assert sorted(path.name for path in official.iterdir()) == [
        "cultural_common_sense_full_results.json",
        "cultural_common_sense_scores_results.jsonl",
        "natural_science_full_results.json",
        "natural_science_scores_results.jsonl",
        "spatio-temporal_reasoning_full_results.json",
        "spatio-temporal_reasoning_scores_results.jsonl",
    ]
    lines = [line for path in official.glob("*.jsonl") for line in path.read_text().splitlines()]
    ids = [json.loads(line)["prompt_id"] for line in lines]
    assert len(ids) == 11 and 401 not in ids


def test_a_score_beyond_the_scale_counts_officially_and_every_report_tells(
    wise: MakeWise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = use_function_judge(
        lambda question: THREE.format(7 if question.item == "images/401" else 2), monkeypatch
    )
    outcome, result = evaluate_first(wise("wise"), 12)
    assert outcome.state == COMPLETE and len(asked) == 12, "the official program asks no further"
    assert result.metrics["time"].value == pytest.approx(((0.7 * 7 + 0.2) / 2 + 0.8) / 2)
    note = (
        "1 of the judge's verdicts are beyond its scale of 0 to 2 and count as the official program reads them "
        "(the first: consistency 7 of 401); rules=corrected asks again"
    )
    assert note in result.notes
    report.main([])
    table = capsys.readouterr().out
    told = [(output_root() / name).read_text() for name in ("leaderboard.md", "report.html")]
    for text in (table, *(unescape(one).replace("\\_", "_") for one in told)):
        assert note in text
    assert f"note: m / wise@{result.evaluator.id}: {note}" in table


def test_corrected_rules_ask_again_for_a_score_within_the_scale(
    wise: MakeWise, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: Counter[str] = Counter()

    def say(question: Question) -> str:
        times[question.item] += 1
        if question.item == "images/1":
            return THREE.format(1 if times[question.item] == 3 else 7)
        return THREE.format(3 if question.item == "images/401" else 2)

    asked = use_function_judge(say, monkeypatch)
    _, first = evaluate_first(wise("wise"), 12)
    corrected = wise("wise", rules="corrected")
    outcome, _ = evaluate_first(corrected, 12)
    corrected_id = first.evaluator.id.replace("/official/", "/corrected/")
    found = {result.evaluator.id: result for result in standing(Cell("m", "wise"))}
    result = found[corrected_id]
    assert (times.pop("images/1"), times.pop("images/401")) == (3, 3) and set(times.values()) == {1}
    assert outcome.state == INCOMPLETE
    assert (result.coverage.judged, result.coverage.unparsed) == (11, 1)
    assert "beyond the judge's scale: consistency 3" in outcome.message
    assert not any("beyond" in note for note in result.notes)
    assert "overall_official" not in result.metrics and corrected.official_headline == ()
    assert first.evaluator.official and not result.evaluator.official
    # what was asked for once more is none of the official program's replies
    asked.clear()
    _, same = evaluate_first(wise("wise"), 12)
    assert asked == [] and same.metrics == first.metrics and same.notes == first.notes


# ---- official files ----------------------------------------------------------------------------------------------


def files_with_records(benchmark: Wise, replies: Mapping[int, str | None]) -> dict[str, str]:
    files = benchmark.official_files(scores(benchmark, replies.get))
    return {name: text for name, text in files.items() if text.strip("[]\n")}


def test_official_files_of_the_verified_protocol(wise: MakeWise) -> None:
    # in a run 81 comes before 2
    replies = {81: "<think>1</think> Score: 1 – ß\n", 2: "Score: 0", 3: "none"}
    assert files_with_records(wise("wise-verified"), replies) == {
        "cultural_common_sense_full_results.json": """[
  {
    "prompt_id": 2,
    "prompt": "prompt 2",
    "key": "it means 2",
    "image_path": "images/2.png",
    "evaluation": "Score: 0"
  },
  {
    "prompt_id": 81,
    "prompt": "prompt 81",
    "key": "it means 81",
    "image_path": "images/81.png",
    "evaluation": "Score: 1 – ß"
  }
]""",
        "cultural_common_sense_scores_results.jsonl": (
            '{"prompt_id": 2, "Subcategory": "culture 0", "score": 0.0}\n'
            '{"prompt_id": 81, "Subcategory": "culture 1", "score": 1.0}\n'
        ),
    }


def test_official_files_of_the_legacy_protocol(wise: MakeWise) -> None:
    aesthetic_first = "Aesthetic Quality: 0\nRealism: 1\nConsistency: 2\n"
    files = files_with_records(wise("wise-rewrite"), {401: aesthetic_first})
    # the legacy README leaves "_full" and "_scores" out of this domain's names
    assert sorted(files) == [
        "spatio-temporal_reasoning_results.json",
        "spatio-temporal_reasoning_results.jsonl",
    ]
    assert files["spatio-temporal_reasoning_results.jsonl"] == (
        '{"prompt_id": 401, "Subcategory": "time 0", "consistency": 2.0, "realism": 1.0, '
        '"aesthetic_quality": 0.0}\n'
    )
    [full] = json.loads(files["spatio-temporal_reasoning_results.json"])
    assert full["evaluation"] == aesthetic_first


# ---- the data ----------------------------------------------------------------------------------------------------

SUBCATEGORIES = {"wise": 27, "wise-verified": 26}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, Mapping[str, Any]]]:
    """The official entries of all three by prompt id."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name in EDITIONS:
        use_official_data(name, tmp_path, monkeypatch)
        made = items_of(registry.load_dataset(name, {}), Cell("m", name))
        found[name] = {item.data["prompt_id"]: {**item.data, "prompt": item.prompt or ""} for item in made}
    return found


def test_official_ids_categories_and_labels(official: dict[str, dict[int, Mapping[str, Any]]]) -> None:
    for name, entries in official.items():
        assert sorted(entries) == list(range(1, 1001))
        categories = EDITIONS[name].categories
        counts = Counter(entry["category"] for entry in entries.values())
        assert counts == {key: len(ids) for key, ids in categories.items()}
        if expected := SUBCATEGORIES.get(name):
            assert len({entry["subcategory"] for entry in entries.values()}) == expected
            # a label belongs to one category
            keys = {(entry["category"], entry["subcategory"]) for entry in entries.values()}
            assert len(keys) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (lambda rows: rows[:350], "holds 350 records, not 400"),
        (lambda rows: [{**rows[0], "Explanation": None}, *rows[1:]], "prompt 1 lacks a text"),
    ],
)
def test_wrong_data_file_is_one_line(
    wise: MakeWise, content: str | Callable[[Any], object] | None, says: str
) -> None:
    benchmark = wise("wise-verified")
    path = benchmark.data / "cultural_common_sense_verified.json"
    if content is None:
        path.unlink()
    else:
        path.write_text(
            content if isinstance(content, str) else json.dumps(content(json.loads(path.read_text())))
        )
    with pytest.raises(CellFailure) as caught:
        items(benchmark)
    message = str(caught.value)
    assert says in message and str(path) in message and "\n" not in message
