"""WISE for the engine: the official request, further tries, official files, and who is the official judge."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.wise.benchmark import WiseBenchmark
from imageevalkit import assets
from imageevalkit.benchmark.contract import Judged, Unparsed, check_judge, rules_of
from imageevalkit.benchmark.question import Message, Picture, Question, Reply
from imageevalkit.cell import REPO, Cell, output_root
from imageevalkit.cell.items import Item, items_of
from imageevalkit.cell.results import Result, read_result, standing
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.evaluation.run import evaluate_cell
from imageevalkit.jobs import COMPLETE, INCOMPLETE, Outcome
from imageevalkit.progress import ProgressWriter
from imageevalkit.report import __main__ as report
from tests.support.function_judge import FunctionJudge
from tests.support.wise import DATASETS, SYSTEM, judged, make_wise

THREE = "Consistency: {}\nRealism: 1\nAesthetic Quality: 0"


@pytest.fixture
def wise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[WiseBenchmark, FunctionJudge]]:
    """Makes a benchmark by its name; see :func:`tests.support.wise.make_wise`."""
    return lambda name, **given: make_wise(name, tmp_path / "benchmarks", monkeypatch, **given)


def first_items(name: str, limit: int) -> list[Item]:
    return items_of(DATASETS[name](), Cell("m", name), limit)


@pytest.mark.parametrize(
    ("name", "max_tokens", "extra"),
    [
        ("wise", 2000, {}),
        ("wise-rewrite", 2000, {}),
        ("wise-verified", 500, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_the_official_request(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
    name: str,
    max_tokens: int,
    extra: dict[str, object],
) -> None:
    benchmark, _ = wise(name)
    [item] = first_items(name, 1)
    picture = Picture(item.path, "a" * 64)
    [question] = benchmark.questions(item, picture)
    prompt_id = item.data["prompt_id"]
    text = f'Protocol.\nPROMPT: "prompt {prompt_id}"\nEXPLANATION: "it means {prompt_id}"\nAnswer.'
    declared = Picture(item.path, "a" * 64, "image/png", None)
    assert question.messages == (Message("system", (SYSTEM,)), Message("user", (text, declared)))
    sampling = question.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (max_tokens, 0.0, None)
    assert sampling.extra == extra
    assert benchmark.tries == 3


def test_texts_are_put_in_as_they_are(wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]]) -> None:
    benchmark, _ = wise("wise")
    [item] = first_items("wise", 1)
    odd = Item(item.id, item.path, 42, None, None, {"prompt": '{Explanation} "{}"', "explanation": "{0}\n%s"})
    [question] = benchmark.questions(odd, Picture(item.path, ""))
    assert 'PROMPT: "{Explanation} "{}""\nEXPLANATION: "{0}\n%s"\n' in question.text


@pytest.mark.parametrize(
    ("name", "reply", "says"),
    [
        ("wise", "Consistency: 2\n1\n1", "no realism, aesthetic_quality in 'Consistency: 2 1 1'"),
        ("wise-verified", "<think>Score: 1</think>\nI cannot\nsay", "no score in 'I cannot say'"),
    ],
)
def test_reply_without_all_scores(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]], name: str, reply: str, says: str
) -> None:
    benchmark, _ = wise(name)
    [item] = first_items(name, 1)
    [question] = benchmark.questions(item, Picture(item.path, ""))
    with pytest.raises(Unparsed) as caught:
        benchmark.parse(question, Reply(reply))
    assert str(caught.value) == says


@pytest.mark.parametrize("bare", [False, True])
def test_worked_example_of_one_image(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]], bare: bool
) -> None:
    benchmark, _ = wise("wise")
    [one] = judged(benchmark, lambda _: "2\n1\n0" if bare else THREE.format(2), limit=1)
    assert one.score is not None
    assert one.score.values["wiscore"] == pytest.approx(0.80)
    assert one.score.values["consistency"] == 2
    assert one.score.keys == {"category": "culture", "subcategory": "culture 0", "prompt_id": 1}


def evaluate(benchmark: WiseBenchmark, limit: int) -> tuple[Outcome, Result]:
    """Evaluate the first items, each with an image of its own."""
    cell = Cell("m", benchmark.name)
    items = first_items(benchmark.name, limit)
    for n, item in enumerate(items):
        item.path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (n, 0, 0)).save(item.path)
    outcome = evaluate_cell(cell, benchmark, items, limit, False, ProgressWriter())
    return outcome, read_result(cell.result)


def test_a_reply_without_score_is_asked_again_twice(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
) -> None:
    asked: Counter[str] = Counter()

    def say(question: Question) -> str:
        asked[question.item] += 1
        if question.item == "images/1":
            return "Score: 0" if asked[question.item] == 3 else "Score: maybe"
        return "never" if question.item == "images/401" else "Score: 1"

    benchmark, _ = wise("wise-verified", say=say)
    outcome, result = evaluate(benchmark, 12)
    assert asked.pop("images/1") == asked.pop("images/401") == 3
    assert set(asked.values()) == {1}
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
    ids = [
        json.loads(line)["prompt_id"]
        for path in official.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(ids) == 11 and 401 not in ids


@pytest.mark.parametrize(("said", "read"), [("7", 7), ("12", 1)])
def test_a_score_beyond_the_scale_counts_officially_and_every_report_tells(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
    said: str,
    read: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark, judge = wise(
        "wise", say=lambda question: THREE.format(said if question.item == "images/401" else 2)
    )
    outcome, result = evaluate(benchmark, 12)
    assert outcome.state == COMPLETE and len(judge.asked) == 12, "the official program asks no further"
    assert result.metrics["time"].value == pytest.approx(((0.7 * read + 0.2) / 2 + 0.8) / 2)
    note = (
        "1 of the judge's verdicts are beyond its scale of 0 to 2 and count as the official program reads them "
        f"(the first: consistency {said} of 401); rules=corrected asks again"
    )
    assert note in result.notes
    report.main([])
    table = capsys.readouterr().out
    told = [(output_root() / name).read_text() for name in ("leaderboard.md", "report.html")]
    for text in (table, *(unescape(one).replace("\\_", "_") for one in told)):
        assert note in text
    assert f"note: m / wise@{result.evaluator.id}: {note}" in table


def test_corrected_rules_ask_again_for_a_score_within_the_scale(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
) -> None:
    asked: Counter[str] = Counter()

    def say(question: Question) -> str:
        asked[question.item] += 1
        if question.item == "images/1":
            return THREE.format(1 if asked[question.item] == 3 else 7)
        return THREE.format(3 if question.item == "images/401" else 2)

    official, _ = wise("wise", say=say)
    _, first = evaluate(official, 12)
    corrected, _ = wise("wise", say=say, rules="corrected")
    outcome, _ = evaluate(corrected, 12)
    [result] = [r for r in standing(Cell("m", "wise")) if r.evaluator.id == corrected.evaluator.id]
    assert (asked.pop("images/1"), asked.pop("images/401")) == (3, 3) and set(asked.values()) == {1}
    assert outcome.state == INCOMPLETE
    assert (result.coverage.judged, result.coverage.unparsed) == (11, 1)
    assert "beyond the judge's scale: consistency 3" in outcome.message
    assert not any("beyond" in note for note in result.notes)
    assert "overall_official" not in result.metrics
    judge, _, digest = first.evaluator.id.rpartition("/")
    assert result.evaluator.id == f"{judge}/corrected/{digest}"
    assert first.evaluator.official and not result.evaluator.official
    # what was asked for once more is none of the official program's replies
    again, judge_again = wise("wise", say=say)
    _, same = evaluate(again, 12)
    assert judge_again.asked == [] and same.metrics == first.metrics and same.notes == first.notes


def test_wrong_settings_are_told() -> None:
    with pytest.raises(UserError, match=r"wise's rules are 'corect': .*did you mean 'corrected'\?"):
        rules_of("wise", {"rules": "corect"})
    with pytest.raises(UserError, match=r"wise-rewrite has no setting 'rule' \(did you mean 'rules'\?\)"):
        rules_of("wise-rewrite", {"rule": "official"})
    with pytest.raises(UserError, match="wise-verified takes no settings"):
        rules_of("wise-verified", {"rules": "official"})


def test_a_limited_run_has_an_overall(wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]]) -> None:
    benchmark, _ = wise("wise", say=lambda _: THREE.format(2))
    outcome, result = evaluate(benchmark, 7)
    assert outcome.state == COMPLETE
    assert result.headline == ["overall"]
    assert result.metrics["overall"].value == pytest.approx(0.8)
    assert result.metrics["overall_official"].value is None
    assert result.benchmark_version == "wise-eb51174"


def record_files(benchmark: WiseBenchmark, done: list[Judged]) -> dict[str, str]:
    return {name: text for name, text in benchmark.official_files(done).items() if text.strip("[]\n")}


def test_official_files_of_the_verified_protocol(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
) -> None:
    benchmark, _ = wise("wise-verified")
    replies = {2: "<think>1</think> Score: 1 – ß\n", 1: "Score: 0", 3: "none"}
    files = record_files(benchmark, judged(benchmark, replies.get))
    assert files == {
        "cultural_common_sense_full_results.json": """[
  {
    "prompt_id": 1,
    "prompt": "prompt 1",
    "key": "it means 1",
    "image_path": "images/1.png",
    "evaluation": "Score: 0"
  },
  {
    "prompt_id": 2,
    "prompt": "prompt 2",
    "key": "it means 2",
    "image_path": "images/2.png",
    "evaluation": "Score: 1 – ß"
  }
]""",
        "cultural_common_sense_scores_results.jsonl": (
            '{"prompt_id": 1, "Subcategory": "culture 0", "score": 0.0}\n'
            '{"prompt_id": 2, "Subcategory": "culture 0", "score": 1.0}\n'
        ),
    }


def test_official_files_of_the_legacy_protocol(
    wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]],
) -> None:
    benchmark, _ = wise("wise-rewrite")
    aesthetic_first = "Aesthetic Quality: 0\nRealism: 1\nConsistency: 2\n"
    files = record_files(benchmark, judged(benchmark, {401: aesthetic_first}.get))
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


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("wise", "openai:gpt-4o-2024-05-13"),
        ("wise-rewrite", "openai:gpt-4o-2024-05-13"),
        ("wise-verified", "vllm:qwen3.5-35b-a3b"),
    ],
)
def test_judges(wise: Callable[..., tuple[WiseBenchmark, FunctionJudge]], name: str, default: str) -> None:
    assert check_judge(name, "", {}) == check_judge(name, default.partition(":")[2], {}) == default
    assert check_judge(name, "transformers:qwen3-vl-8b", {}) == "transformers:qwen3-vl-8b"
    with pytest.raises(UserError, match="unknown judge"):
        check_judge(name, "gpt-4p", {})
    official, _ = wise(name)
    other, _ = wise(name, judge="qwen3-vl-8b")
    assert official.evaluator.official and not other.evaluator.official
    assert official.evaluator.id != other.evaluator.id


def test_missing_prompts_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = assets.manifest_path("wise-rewrite").read_bytes()
    rules = rules_of("wise-rewrite", {})
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    (tmp_path / "wise_rewrite").mkdir()
    (tmp_path / "wise_rewrite" / "assets.json").write_bytes(manifest)
    assert rules is not None
    with pytest.raises(
        CellFailure, match=r"judge_prompts\.json is missing.*--ds_names wise-rewrite"
    ) as caught:
        rules.make("openai:gpt-4o-2024-05-13")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DATASETS)
def test_everything_a_benchmark_needs_is_in_the_tree(name: str) -> None:
    assert (REPO / "eval" / f"{name}.sh").resolve() == REPO / "utils/evaluate.sh"
    assert (REPO / "requirements/benchmark/t2i" / f"{name}.txt").is_file()
    config = (REPO / "config.sh").read_text()
    assert config.count(f"  ['{name}']=") == 3
