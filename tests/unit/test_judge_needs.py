"""The needs of an evaluate job for its judge, and its options, before anything starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imageevalkit import assets
from imageevalkit.common.errors import UserError
from imageevalkit.extras.prefetch.__main__ import read_request
from imageevalkit.jobs.plan import EvaluateOrder, ServeOrder, job_words
from imageevalkit.plan.benchmarks import choose_benchmark
from imageevalkit.plan.config import DRIVER_ENV, Config
from imageevalkit.plan.options import Options, resolve
from imageevalkit.plan.planner import make_plan
from imageevalkit.plan.stage_jobs import JudgeNeeds, Run, evaluate_jobs, judge_needs
from imageevalkit.run.runner import job_environ
from imageevalkit.store.cell import Cell
from tests.support.fake_vllm import install


@pytest.fixture(autouse=True)
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "envs/vllm")
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))


def needs(tmp_path: Path, judge: str, **kwargs: Any) -> JudgeNeeds:
    wise = choose_benchmark(Config(), "wise", judge, kwargs)
    return judge_needs(
        Run(Options(judge_kwargs=kwargs), Config(), tmp_path, "now", 1, {}, {"wise": wise}), wise
    )


def test_a_wrong_setting_of_a_judge_is_told_before_anything_starts(tmp_path: Path) -> None:
    for judge, settings, words in (
        (
            "openai:m",
            {"temperature": 0},
            r"judge 'm' of wise: .*'temperature'.*request parameters go into extra_body",
        ),
        ("transformers:org/judge", {"batch_size": "8"}, "batch_size must be a whole number, not '8'"),
        (
            "vllm:org/judge",
            {"serve_args": "--port 8000"},
            "serve_args: --port: the run sets it: leave it out",
        ),
    ):
        with pytest.raises(UserError, match=words):
            needs(tmp_path, judge, **settings)


def test_a_judge_without_vllm_or_its_weights_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for conda, words in (
        ("/opt/none", "no /opt/none/envs/vllm/bin/vllm; build it with 'bash utils/make_env.sh --judge vllm'"),
        ("", "CONDA_BASE is empty"),
    ):
        monkeypatch.setenv("CONDA_BASE", conda)
        with pytest.raises(UserError, match=words):
            needs(tmp_path, "vllm:org/judge")
    monkeypatch.setenv("CONDA_BASE", str(tmp_path))
    gone = choose_benchmark(Config(), "wise", "vllm:/no/such/judge", {})
    assert "/no/such/judge is missing" in gone.missing_weights("wise=vllm:/no/such/judge")


def test_a_judge_without_its_key_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    words = "judge 'gpt-4o' of wise is reached through an API: API_KEY is not set"
    with pytest.raises(UserError, match=words):
        needs(tmp_path, "openai:gpt-4o")


def test_what_a_judge_of_embedded_prompts_is_asked_with_is_missed_before_an_image_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "BENCHMARKS", tmp_path)
    monkeypatch.setenv("API_KEY", "x")
    words = {"--model_names": "reference-noise", "--ds_names": "quicktext"}
    judged = {**words, "--judges": "quicktext=openai:my-judge"}

    def blocked(given: dict[str, str]) -> str:
        return "".join(make_plan(resolve(given, Config()), Config()).blocked.values())

    assert "judge_prompts.json is missing. Run: bash eval.sh prefetch --ds_names longtext" in blocked(judged)
    assert not blocked(words) and not blocked({**judged, "--eval": "false"})

    def files(given: dict[str, str]) -> list[str]:
        return [file.path for of in read_request(given, Config()).data.values() for file in of().local]

    assert files(judged) == ["prompts/judge_prompts.json"]
    assert files(words) == files({**judged, "--eval": "false"}) == []


def test_scoring_what_is_on_record_makes_no_image_and_takes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    words = {"--model_names": "gpt-image-2", "--use_api": "true", "--ds_names": "quicktext"}
    with pytest.raises(UserError, match="API_KEY is not set"):
        make_plan(resolve(words, Config()), Config())
    plan = make_plan(resolve({**words, "--rescore": "true"}, Config()), Config())
    assert [job.stage for job in plan.jobs] == ["evaluate", "report"]


def test_a_bound_on_money_needs_the_price_of_every_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "x")
    wise = choose_benchmark(Config(), "wise", "openai:m-1", {})
    run = Run(Options(max_cost=1.0), Config(), tmp_path, "now", 1, {}, {"wise": wise})
    with pytest.raises(UserError, match="--max_cost needs the price of every reply"):
        judge_needs(run, wise)


def test_with_max_cost_evaluation_waits_for_all_images(tmp_path: Path) -> None:
    def follows(max_cost: float | None) -> bool:
        return Run(Options(overlap=True, max_cost=max_cost), Config(), tmp_path, "now", 1, {}, {}).follows

    assert [follows(None), follows(0.5)] == [True, False]


def test_results_share_a_job_as_far_as_they_share_what_it_loads(tmp_path: Path) -> None:
    """A judge over the network loads nothing: its jobs run side by side."""
    names = ["wise", "geneval2", "quicktext"]
    judges = {"wise": "transformers:org/a", "geneval2": "transformers:org/a"}
    models: dict[str, Any] = {"m": {}, "n": {}}

    def jobs(judges: dict[str, str], **options: Any) -> list[tuple[list[str], bool]]:
        options = {"models": models, "benchmarks": names, "judge_kwargs": {}, **options}
        found = {name: choose_benchmark(Config(), name, judges.get(name, ""), {}) for name in names}
        for choice in found.values():
            if choice.judge:
                choice.judge.kwargs["environment"] = ""  # type: ignore[index]
        run = Run(Options(**options), Config(), tmp_path, "now", 1, {}, found)
        cells = [Cell(model, name) for model in models for name in names]
        planned, parts = evaluate_jobs(run, cells, {})
        return [(job.cells, job.light) for job in (*planned, *parts)]

    assert jobs(judges) == [
        (["m/wise", "m/geneval2", "n/wise", "n/geneval2"], False),
        (["m/quicktext", "n/quicktext"], False),
    ]
    assert [cells for cells, _ in jobs(judges, rescore=True)] == [
        [f"{model}/{name}"] for model in models for name in names
    ]


def test_a_job_asks_the_server_that_another_process_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts after the images, as a job that a server starts itself, and reaches this machine past any proxy."""
    monkeypatch.setattr(assets.BenchmarkFiles, "problems", lambda self: [])  # prefetch has run
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NO_PROXY", "lab")
    words = {"--model_names": "reference-noise", "--ds_names": "quicktext"}
    options = resolve({**words, "--judges": "quicktext=vllm:org/judge"}, Config())
    served = make_plan(options, Config())
    assert isinstance(served.jobs[1].order, ServeOrder)
    address = str(tmp_path / "address")
    generating, asking, report = make_plan(
        replace(options, kept_servers={"vllm:org/judge": address}), Config()
    ).jobs
    assert isinstance(asking.order, EvaluateOrder) and isinstance(served.parts[0].order, EvaluateOrder)
    assert asking.order.judge_options == replace(served.parts[0].order.judge_options, address_file=address)
    assert (asking.after, report.after) == ([generating.name], [generating.name, asking.name])
    assert (asking.light, asking.follows, asking.gpus) == (False, False, 0)
    assert job_environ(asking, {}, 1)["NO_PROXY"] == "lab,127.0.0.1"


def test_a_job_is_handed_to_the_process_that_has_loaded_its_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets.BenchmarkFiles, "problems", lambda self: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = {"--model_names": "reference-noise", "--ds_names": "quicktext"}
    words |= {"--judges": "quicktext=transformers:org/judge", "--judge_kwargs": f"environment={DRIVER_ENV}"}
    options, judge = resolve(words, Config()), "transformers:org/judge"
    python = make_plan(options, Config()).jobs[1].command[0]
    options.kept_programs = {(judge, python): ["-m", "keeper", "socket"]}
    asking = make_plan(options, Config()).jobs[1]
    assert asking.command == [python, "-m", "keeper", "socket", *job_words(asking.command[-3], asking.name)]
    assert (asking.gpus, asking.gpus_at_most) == (0, 0)
    rescored = make_plan(replace(options, rescore=True, infer=False), Config()).jobs[0]
    assert "keeper" not in rescored.command
