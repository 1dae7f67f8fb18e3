"""TRIG: its data and their settings, what is asked, TRIGScore, the means and the official files."""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.trig.benchmark import DIMENSIONS, PAIRS, TrigP2P, TrigSettings, TrigT2I, trig_score
from imageevalkit import assets, registry
from imageevalkit.api.failures import Failure
from imageevalkit.assets.data import fetch
from imageevalkit.benchmark.contract import Benchmark, Scores, Unparsed
from imageevalkit.benchmark.question import Answer, Picture, Question
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.judges.api import read_reply
from imageevalkit.plan.benchmarks import checked
from tests.support import trig_data
from tests.support.function_judge import evaluate, items, scores_of, use_function_judge, write_images
from tests.support.mirror import official_source, shared_mirror
from tests.support.trig_data import TASKS

_COMMIT = "e43923c30f7a64f742bc42d7bacc5ebd941412e2"
GOOD = {"Good": 0.50, "Excellent": 0.30, "Medium": 0.10, "Great": 0.05, "good": 0.03}
TERRIBLE = {"Ter": 0.90, "Bad": 0.08, "Medium": 0.01, "Very": 0.005, "Poor": 0.001}
NOTHING = {"The": 0.5, " good": 0.2, "GOOD": 0.1}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data below ``tmp_path``."""
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path / "benchmarks")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def local(tmp_path: Path, task: str, most: int | None = 2, **settings: Any) -> TrigT2I:
    """The benchmark with a local file of at most so many items of a pair."""
    given = trig_data.write_local(tmp_path / "data", task, most)
    return TASKS[task](checked(TrigSettings, {**given, **settings}, "trig"))


def with_texts(benchmark: TrigT2I) -> TrigT2I:
    """With the judge's texts, which are the mirror's."""
    assert fetch(benchmark.files(), shared_mirror()) == []
    return benchmark


def rated(question: Question, probabilities: dict[str, float] = GOOD) -> Answer:
    return Answer(question, next(iter(probabilities)), probabilities=probabilities, outside=0.0)


# TRIGScore


@pytest.mark.parametrize(
    ("tokens", "official", "paper", "corrected"),
    [
        (GOOD, 0.804, 0.432, 0.804),
        (TERRIBLE, 0.278, 0.247, 0.025),
        (NOTHING, 0.0, 0.0, None),
        ({"ter": 0.9}, 0.0, 0.0, 0.0),
        ({"ex": 0.9, "Terr": 0.1}, 0.9, 0.81, 0.9),
        ({"The": 0.999, "Good": 1e-10}, 0.375, 0.188, None),
        ({"The": 0.98, "Good": 0.005, "good": 0.004}, 0.75, 0.417, None),
    ],
)
def test_the_score_of_the_likeliest_tokens(
    tokens: dict[str, float], official: float, paper: float, corrected: float | None
) -> None:
    assert trig_score(tokens) == pytest.approx(official)
    assert trig_score(tokens, "paper") == pytest.approx(paper)
    assert trig_score(tokens, "corrected") == (corrected if corrected is None else pytest.approx(corrected))


def official_metric() -> Any:
    """An object with the official method that scores a list of tokens."""
    source = official_source("fesvhtr/TRIG", _COMMIT, "trig/metrics/trig_api.py")
    start, end = source.index("    def logprobs_score"), source.index("    def compute_batch")
    space: dict[str, Any] = {"math": math}
    exec(compile("class Theirs:\n" + source[start:end], "official", "exec"), space)
    return space["Theirs"]()


def test_scores_are_those_of_the_official_program() -> None:
    theirs_of = official_metric().logprobs_score
    draw, names = (
        random.Random(5),
        ["Excellent", "good", "Medium", "bad", "Terr", "Ter", "ex", "The", " Good", "terr"],
    )
    for _ in range(100):
        tokens = {name: draw.random() ** 6 for name in draw.sample(names, 5)}
        listed = [SimpleNamespace(token=name, logprob=math.log(p)) for name, p in tokens.items()]
        for rules, confidence in (("official", False), ("paper", True)):
            theirs = round(theirs_of(listed, confidence), 3)
            assert trig_score(tokens, rules) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "score", "is_short"),
    [
        pytest.param([("Good", 0.4), ("Medium", 0.3), ("Good", 0.2)], 0.667, True, id="a text twice"),
        pytest.param([*((text, 0.1) for text in "ABCDE"), ("Good", 0.05)], 0.75, False, id="six"),
        pytest.param([("Good", 0.5), ("Bad", 0.3), ("The", 0.1)], 0.562, True, id="three"),
        pytest.param([("Good", 0.9), ("Bad", 0.9), ("The", 0.9)], 0.5, False, id="three beyond 1"),
        pytest.param([], 0.0, True, id="none"),
    ],
)
def test_officially_a_list_of_tokens_counts_as_it_is(
    tmp_path: Path, tokens: list[tuple[str, float]], score: float, is_short: bool
) -> None:
    listed = [{"token": token, "logprob": math.log(p), "bytes": [*token.encode()]} for token, p in tokens]
    logprobs = {"content": [{"token": "Good", "logprob": -0.5, "top_logprobs": listed}]}
    choice = {"message": {"content": "Good"}, "finish_reason": "length", "logprobs": logprobs}
    body = json.dumps({"choices": [choice]}).encode()
    for rules in ("official", "paper", "corrected"):
        benchmark = with_texts(local(tmp_path, "t2i", rules=rules))
        item = items(benchmark)[0]
        asked, _ = benchmark.questions(item, Picture(item.path, "ab" * 32), {})  # type: ignore[arg-type]
        answer = read_reply(asked, body, 5, None)
        assert isinstance(answer, Failure) == (rules == "corrected" and is_short)
        if rules == "official":
            assert isinstance(answer, Answer) and benchmark.parse(asked, answer) == pytest.approx(score)

    entries = [SimpleNamespace(**one) for one in listed]
    assert round(official_metric().logprobs_score(entries), 3) == pytest.approx(score)


def test_a_reply_without_probabilities_is_no_score(tmp_path: Path) -> None:
    for rules in ("official", "paper", "corrected"):
        benchmark = local(tmp_path, "t2i", rules=rules)
        question = Question("IQ-R", (), None)  # type: ignore[arg-type]  # it is not sent
        with pytest.raises(Unparsed):
            benchmark.parse(question, Answer(question, "Good"))
    with pytest.raises(Unparsed, match=r"no rating has 0\.01 of the probability .*: 'The' 0\.500, ' good'"):
        benchmark.parse(question, rated(question, NOTHING))


# data


def test_the_whole_has_the_sizes_that_are_told(tmp_path: Path) -> None:
    benchmark, count = local(tmp_path, "t2i", None), 13_200
    sizes = Counter(data["pair"] for data in benchmark.chosen)
    assert (len(benchmark.chosen), len(sizes), TrigT2I().prompt_count) == (count, 42, count)
    assert sizes == {pair: size for pair in PAIRS if (size := benchmark.size_of(pair))}
    assert benchmark.prompt_count == 0, "of a file nobody knows before it is read"
    first = Counter(
        sample.data["pair"] for sample, _ in zip(benchmark.samples(), range(count // 10), strict=False)
    )
    assert all(abs(first[pair] - size / 10) <= 1 for pair, size in sizes.items()), (
        "any first items hold all in their shares"
    )


def test_what_a_model_is_shown(tmp_path: Path) -> None:
    t2i, p2p, s2p = (items(local(tmp_path, task)) for task in TASKS)
    assert t2i[0].prompt == "A scene of number 1 that IQ-R asks for, with a cup and 一只猫"
    assert t2i[0].id == "images/IQ-R_IQ-O_1" and t2i[0].path.suffix == ".png"
    picture, prompt = p2p[0].input_list or ()
    assert (picture.size, prompt) == ((32, 24), t2i[0].prompt)
    subject, picture, prompt = s2p[0].input_list or ()
    assert (subject, prompt) == ("thing 1", t2i[0].prompt)
    assert abs(picture.convert("RGB").getpixel((5, 5))[1] - 90) < 9, "it can be read, of a JPEG"
    assert (
        registry.benchmark_tasks()["trig-s2p"] == "subject"
        and registry.benchmark_tasks()["trig-p2p"] == "edit"
    )


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 84), ({"pairs": "TA-C_TA-R;D-K_D-A", "per_pair": 1}, 2), ({"per_pair": {"TA-C_TA-R": 1}}, 83)],
)
def test_pairs_and_counts_are_chosen(tmp_path: Path, settings: dict[str, Any], count: int) -> None:
    benchmark = local(tmp_path, "t2i", **settings)
    assert len(items(benchmark)) == len(benchmark.chosen) == count
    assert [*benchmark.headline] == [
        d for d in DIMENSIONS if any(d in data["pair"].split("_") for data in benchmark.chosen)
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pairs": "TA-C_IQ-R"}, "did you mean 'IQ-R_TA-C'"),
        (
            {"per_pair": {"D-K_D-A": 1}, "pairs": "TA-C_TA-R"},
            "per_pair counts D-K_D-A, which is not among the pairs",
        ),
        ({"per_pair": 0}, "per_pair is a whole number of at least 1"),
        (
            {"rules": "papers"},
            "rules must be official or paper or corrected, not 'papers' (did you mean 'paper'?)",
        ),
        (
            {"metrics": {"IQ-A": ["clip_score"]}},
            "IQ-A has no metric 'clip_score' (did you mean 'clipscore'?)",
        ),
    ],
)
def test_settings_are_checked_when_the_run_is_planned(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        checked(TrigSettings, given, "trig")
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data_id": "IQ-R_IQ-O_../../1"}, "belongs to no pair"),
        ({"dimensions": ["IQ-R", "TA-C"]}, "or not to its dimensions ['IQ-R', 'TA-C']"),
        ({"dimensions": [["IQ-R"], "IQ-O"]}, "item 1 of 90: 'dimensions.0' is [\"IQ-R\"]"),
        ({"img_id": "gone.png"}, "gone.png is missing; put it there, or correct the setting sources"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    benchmark = local(tmp_path, "s2p")
    path = Path(benchmark.settings.prompts)
    first, *rest = json.loads(path.read_text())
    path.write_text(json.dumps([{**first, **change}, *rest]))
    with pytest.raises(CellFailure) as error:
        items(benchmark)
    assert (
        says in str(error.value)
        and "\n" not in str(error.value)
        and str(error.value).startswith("benchmark trig-s2p")
    )


def test_a_file_that_is_not_there_or_lacks_a_pair(tmp_path: Path) -> None:
    with pytest.raises(CellFailure, match=r"there is no file /no/t2i\.json: correct the setting prompts"):
        items(TrigT2I(TrigSettings(prompts="/no/t2i.json")))
    with pytest.raises(CellFailure, match="it has no item of the pair R-T_R-B"):
        items(local(tmp_path, "t2i", pairs="R-T_R-B"))


# the dataset of the hub


def test_the_dataset_needs_prefetch_and_a_local_file_does_not(tmp_path: Path) -> None:
    for name in ("trig-t2i", "trig-p2p", "trig-s2p"):
        files = registry.benchmark_files(name)
        assert "rows.jsonl is missing" in files.problems()
        assert f"copy benchmarks/{name.replace('-', '_')}/data" in files.explain(files.problems())
    given = trig_data.write_local(tmp_path / "data", "t2i", 1)
    texts = ("prompts/judge_prompts.json", "vqascore_prompts.json")
    assert registry.benchmark_files("trig-t2i", given).problems() == [f"{file} is missing" for file in texts]


def test_rows_are_trusted_once_and_then_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="no pyarrow, which reads Parquet: requirements/parquet.txt")
    trig_data.write_hub_cache(tmp_path / "home", "p2p", 1)
    benchmark = with_texts(TrigP2P())
    assert "nobody has published its hash; recorded for later checks: sha256" in capsys.readouterr().out
    files, rows = benchmark.files(), benchmark.data / "rows.jsonl"
    image = benchmark.data / json.loads(rows.read_text().splitlines()[0])["image"]
    was = image.read_bytes()
    image.write_bytes(was[:-1] + b"x")
    assert files.problems() == [], "only bytes tell"
    assert "missing, or not as first fetched" in "".join(files.problems(hashes=True))
    with pytest.raises(CellFailure, match="prefetch"):
        files.sha256()
    image.unlink()
    assert f"{image.relative_to(benchmark.data)} of rows.jsonl" in "".join(files.problems())
    with_texts(benchmark)
    assert image.read_bytes() == was
    # what the hub has become meanwhile is not taken for the same
    image.unlink()
    (tmp_path / "home/hub").rename(tmp_path / "old")
    trig_data.write_hub_cache(tmp_path / "home", "p2p", 2)
    [problem] = fetch(files, shared_mirror())
    assert "has other rows than at the first download" in problem
    assert not image.exists() and not list(benchmark.data.glob(".*.part"))


def test_who_lacks_the_reader_of_parquet_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    problems = fetch(TrigT2I().files(), shared_mirror())
    assert problems[0].endswith(f"run: {sys.executable} -m pip install -r requirements/parquet.txt")


# what is asked


@pytest.mark.parametrize("task", TASKS)
def test_the_judge_sees_the_words_then_the_image(tmp_path: Path, task: str) -> None:
    benchmark = with_texts(local(tmp_path, task))
    item = items(benchmark)[0]
    image = Picture(item.path, "ab" * 32)
    asked = [*benchmark.questions(item, image, {})]  # type: ignore[arg-type]  # it asks for no answers
    texts = json.loads(next(shared_mirror().glob(f"fesvhtr/TRIG/{_COMMIT}/judge_prompts.json")).read_text())
    for question, dimension in zip(asked, ("IQ-R", "IQ-O"), strict=True):
        system, user = question.messages
        told = texts[f"trig/config.py::gpt_logit_dimension_msg['{task}']['{dimension}']"]["text"]
        frame = texts[f"trig/config.py::gpt_logit_system_msg['{task}']"]["text"]
        assert system.parts == ((frame.format("thing 1", told) if task == "s2p" else frame.format(told)),)
        words = {"t2i": "Prompt", "p2p": "Editing prompt", "s2p": "Subject-driven Prompt"}[task]
        assert user.parts == (f"{words} for generating this image: {item.data['prompt']}", image), "quirk T1"
        assert (question.name, question.likeliest, question.sampling.temperature) == (dimension, 5, 1.0)


def test_corrected_the_judge_sees_the_source_too(tmp_path: Path) -> None:
    benchmark = with_texts(local(tmp_path, "p2p", rules="corrected"))
    item = items(benchmark)[0]
    image = Picture(item.path, "ab" * 32)
    for question in benchmark.questions(item, image, {}):  # type: ignore[arg-type]
        assert len(question.pictures) == 2 and question.pictures[-1] == image
        assert question.pictures[:-1] == tuple(benchmark.sources(item))


# scores


def ratings(question: Question) -> Answer:
    """Excellent for realism, else good; of the second of each pair nothing that counts."""
    if question.item.endswith("_2"):
        return rated(question, NOTHING)
    return rated(question, {"Excellent": 1.0} if question.name == "IQ-R" else {"Good": 0.9, "Ter": 0.1})


def scored(benchmark: Benchmark) -> Scores:
    return scores_of(benchmark, items(benchmark), ratings)


def test_a_dimension_is_the_mean_of_its_samples_and_pairs_stand_beside_it(tmp_path: Path) -> None:
    benchmark = with_texts(local(tmp_path, "t2i", per_pair={"IQ-R_IQ-O": 1}))
    scores = scored(benchmark)
    assert len(scores) == 83
    assert all(set(score.values) == set(score.keys["pair"].split("_")) for score in scores)
    metrics = benchmark.metrics(scores)
    # nine pairs of realism: in one of them one rating of 1, in the others 1 and 0
    assert metrics["IQ-R"].value == pytest.approx(9 / 17) and metrics["IQ-R"].n == 17
    assert metrics["IQ-R/IQ-R_IQ-O"].value == 1 and metrics["IQ-R/IQ-R_TA-C"].value == 0.5
    assert metrics["IQ-O/IQ-R_IQ-O"].value == 0.75
    assert [*metrics][:10] == [*DIMENSIONS] and "R-T/R-T_R-B" not in metrics
    assert len([name for name in metrics if "/" in name]) == 84
    zeros, terrible = benchmark.notes(scores)
    assert zeros.startswith("82 of 166 ratings are 0") and terrible.startswith("in 75 of 166 ratings")


def test_official_files_are_what_the_official_programs_read(tmp_path: Path) -> None:
    benchmark = with_texts(local(tmp_path, "t2i", pairs="IQ-R_TA-C,D-K_D-A"))
    files = {name: json.loads(text) for name, text in benchmark.official_files(scored(benchmark)).items()}
    metric = "TRIGAPIMetric_Qwen/Qwen2.5-VL-7B-Instruct"
    assert files["results.json"]["IQ-R_TA-C_1"] == {"IQ-R": [{metric: 1.0}], "TA-C": [{metric: 0.75}]}
    assert files["scores_by_pair.json"] == {
        "IQ-R_TA-C": {"IQ-R_TA-C_1": [1.0, 0.75], "IQ-R_TA-C_2": [0.0, 0.0]},
        "D-K_D-A": {"D-K_D-A_1": [0.75, 0.75], "D-K_D-A_2": [0.0, 0.0]},
    }
    assert [*files["scores_by_pair.json"]] == ["IQ-R_TA-C", "D-K_D-A"]


# other metrics


ZOO: dict[str, Any] = {
    "IQ-A": ["trigscore", "aesthetic_predictor", "niqe"],
    "R-T": ["nudenet"],
    "TA-C": ["trig_api", "clipscore", "vqascore_gpt", "vqascore_llava"],
    "IQ-O": ["trigscore"],
}
MEASURED = {"aesthetic_predictor": 6.5, "nudenet": 0.75, "clipscore": 1.5, "vqascore_llava": 0.25}


def measured(question: Question) -> Answer:
    """Ratings as above, and numbers of the others; of the first of each pair there is no NIQE."""
    if question.group == "vqascore_gpt":
        first = question.item.endswith("_1")
        return rated(question, {"Yes": 0.625, "yes": 0.25} if first else {"No": 0.9, "no": 0.05})
    if question.group == "niqe":
        return Answer(question, "null" if question.item.endswith("_1") else "4.5")
    if question.group in MEASURED:
        return Answer(question, json.dumps(MEASURED[question.group]))
    return ratings(question)


def test_other_metrics_stand_beside_trigscore_which_stays_what_it_is(tmp_path: Path) -> None:
    pairs = "IQ-A_TA-C,IQ-O_IQ-A,IQ-R_R-T,IQ-R_IQ-O"
    plain = with_texts(local(tmp_path, "t2i", pairs=pairs))
    benchmark = with_texts(local(tmp_path, "t2i", pairs=pairs, metrics=ZOO))
    before, scores = scored(plain), scores_of(benchmark, items(benchmark), measured)
    for one, other in zip(before, scores, strict=True):
        assert {name: other.values[name] for name in one.values} == one.values and one.keys == other.keys
    first = next(score for score in scores if score.item == "images/IQ-A_TA-C_1")
    assert {name: value for name, value in first.values.items() if "/" in name} == {
        "IQ-A/aesthetic_predictor": 6.5,
        "TA-C/clipscore": 1.5,
        "TA-C/vqascore_gpt": 0.625,
        "TA-C/vqascore_llava": 0.25,
    }
    metrics, means = benchmark.metrics(scores), plain.metrics(before)
    assert {name: metrics[name] for name in means} == means and benchmark.headline == plain.headline
    assert {name: (metrics[name].value, metrics[name].n) for name in metrics.keys() - means.keys()} == {
        "IQ-A/aesthetic_predictor": (6.5, 4),
        "IQ-A/niqe": (4.5, 2),
        "R-T/nudenet": (0.75, 2),
        "TA-C/clipscore": (1.5, 2),
        "TA-C/vqascore_gpt": (0.3125, 2),
        "TA-C/vqascore_llava": (0.25, 2),
    }
    assert benchmark.notes(scores) == [
        *plain.notes(before),
        "2 images have no niqe, and are not in its means",
    ]
    files = {name: json.loads(text) for name, text in benchmark.official_files(scores).items()}
    trig = "TRIGAPIMetric_Qwen/Qwen2.5-VL-7B-Instruct"
    assert files["results.json"]["IQ-A_TA-C_1"] == {
        "IQ-A": [{trig: 0.75}, {"aesthetic_predictor": 6.5}],
        "TA-C": [{trig: 0.75}, {"clipscore": 1.5}, {"vqascore_gpt": 0.625}, {"vqascore_llava": 0.25}],
    }
    assert files["scores_by_pair.json"] == json.loads(plain.official_files(before)["scores_by_pair.json"])


def test_a_failed_request_is_never_a_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = with_texts(local(tmp_path, "t2i", pairs="IQ-R_TA-C,D-K_D-A"))
    made = items(benchmark)
    write_images(made)
    use_function_judge(
        lambda q: None if q.item.endswith("IQ-R_TA-C_1") and q.name == "TA-C" else ratings(q), monkeypatch
    )
    outcome, result = evaluate(benchmark, made)
    assert outcome.state == "incomplete" and result.coverage.judge_failed == 1
    assert result.headline == [] and result.metrics["TA-C"].value == 0, "of the one that was rated"
    assert result.evaluator.id.split("/")[-2] == "official"
