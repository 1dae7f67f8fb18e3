"""WISE's three benchmarks on prompts of our own in the shape of the official files, with a judge that is told
what to say."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.wise.benchmark import WiseBenchmark
from benchmarks.wise.categories import domains
from custom_datasets.dataset_cls.t2i.wise import WiseBench, WiseRewriteBench, WiseVerifiedBench
from imageevalkit import assets
from imageevalkit.benchmark.contract import Judged, Unparsed
from imageevalkit.benchmark.question import Picture, Question, Reply
from imageevalkit.cell import Cell
from imageevalkit.cell.items import items_of
from tests.support.function_judge import FunctionJudge
from tests.support.manifest import COMMIT

DATASETS: dict[str, type[WiseBench]] = {
    dataset.name: dataset for dataset in (WiseBench, WiseVerifiedBench, WiseRewriteBench)
}
SYSTEM = "You judge."
USER = 'Protocol.\nPROMPT: "{Prompt}"\nEXPLANATION: "{Explanation}"\nAnswer.'


def write_data(benchmarks: Path, name: str) -> None:
    """The data folder of benchmark ``name`` below ``benchmarks``; five subcategories per category."""
    dataset = DATASETS[name]
    data = benchmarks / name.replace("-", "_") / "data"
    data.mkdir(parents=True)
    for domain, categories in domains(dataset.categories).items():
        records = [
            {
                "Prompt": f"prompt {prompt_id}",
                "Explanation": f"it means {prompt_id}",
                "Category": category.name.title(),
                # sorted by subcategory, as the official files partly are
                "Subcategory": f"{category.name} {5 * (prompt_id - category.ids.start) // len(category.ids)}",
                "prompt_id": prompt_id,
            }
            for category in categories
            for prompt_id in category.ids
        ]
        (data / f"{domain}{dataset.suffix}.json").write_text(json.dumps(records))
    program = "vllm_eval.py" if name == "wise-verified" else "WISE_legacy/gpt_eval.py"
    key = f"{program}::build_evaluation_messages#"
    texts = {key + "system": SYSTEM, key + "user": USER}
    (data / "judge_prompts.json").write_text(json.dumps(texts))
    entry = {
        "prompts": "judge_prompts.json",
        "source": {"repo": "owner/name", "commit": COMMIT},
        "texts": {k: {"sha256": hashlib.sha256(text.encode()).hexdigest()} for k, text in texts.items()},
        "licence": "none",
    }
    (data.parent / "assets.json").write_text(json.dumps([entry]))


def make_wise(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[Question], str] = lambda question: "Score: 1",
    judge: str = "",
    **settings: Any,
) -> tuple[WiseBenchmark, FunctionJudge]:
    """Benchmark ``name`` on data of our own below ``folder``, asking a judge that does what ``say`` says."""
    folder_name = name.replace("-", "_")
    module: Any = importlib.import_module(f"benchmarks.{folder_name}.benchmark")
    rules = module if name == "wise-verified" else module.configured(settings)
    monkeypatch.setattr(assets, "BENCHMARKS", folder)
    if not (folder / folder_name).exists():
        write_data(folder, name)
    told = FunctionJudge(lambda question: Reply(say(question)))
    monkeypatch.setattr("eval_models.judge.asked.make_judge", lambda *_: told)
    return rules.make(rules.check_judge(judge)), told


def judged(
    benchmark: WiseBenchmark, reply_of: Callable[[int], str | None], limit: int | None = None
) -> list[Judged]:
    """The run of ``benchmark`` in which the judge replied ``reply_of(prompt_id)``; None: there is no image."""
    done = []
    for item in items_of(DATASETS[benchmark.name](), Cell("m", benchmark.name), limit):
        text = reply_of(item.data["prompt_id"])
        if text is None:
            done.append(Judged(item, None, {}, {}, None))
            continue
        [question] = benchmark.questions(item, Picture(item.path, "0" * 64))
        replies = {question.name: Reply(text)}
        try:
            parsed = {question.name: benchmark.parse(question, replies[question.name])}
        except Unparsed:
            done.append(Judged(item, item.path, replies, {}, None))
            continue
        done.append(Judged(item, item.path, replies, parsed, benchmark.score(item, parsed, replies)))
    return done
