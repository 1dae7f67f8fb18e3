"""``--publish DIR`` writes a folder that can become a dataset of the Hugging Face Hub."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from imageevalkit import registry
from imageevalkit.common.atomic import write_atomic
from imageevalkit.common.errors import CellFailure, ExitStatus, UserError
from imageevalkit.common.locks import held
from imageevalkit.common.text import counted, to_bytes
from imageevalkit.extras.publish import every_eval_ever
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import STALE, CellReport, ItemView, collect
from imageevalkit.report.curves import curves
from imageevalkit.report.index import Found
from imageevalkit.report.leaderboard import Ranks, csv_text
from imageevalkit.report.pages import markdown_text
from imageevalkit.report.sections import sections_of
from imageevalkit.report.sharing import caveats, public, without_folders
from imageevalkit.report.site import copy_site, write_site
from imageevalkit.store.cell import SITE, output_root, short_path
from imageevalkit.store.jsonl import Tell
from imageevalkit.store.results import Result

EVALS, MODELS = "every_eval_ever", "models"
_MARK = "imageevalkit"
_MAKING = ".making"  # a temporary folder inside the target, because its disk has room for the site
_SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}


def check_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` is a file or contains files that ``--publish`` did not write."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--publish: {folder} is no folder")
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        raise UserError(
            f"--publish: {folder} holds other files: give a new folder, or the folder of an earlier --publish"
        )


def _is_ours(folder: Path) -> bool:
    try:
        return f"- {_MARK}\n" in (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def publish(folder: Path, tell: Tell) -> ExitStatus:
    """Write all results of the output folder into ``folder`` and replace what an earlier call wrote there.

    ``tell`` gets one line for each unreadable file and for each thing that is not published. Returns FAILED
    if a result cannot be read.

    Raises:
        UserError: There is no result, or ``folder`` has files that are not from ``--publish``.
        CellFailure: A file cannot be written.
    """
    check_folder(folder)
    cells = collect(tell)
    if not any(cell.result for cell in cells):
        raise UserError("--publish: there is no result to publish")
    items = {cell.cell: cell.items() for cell in cells if cell.is_latest}
    try:
        for name in (EVALS, MODELS):
            shutil.rmtree(folder / name, ignore_errors=True)
        # README.md is first: it marks the folder as one of --publish, also if a later file fails
        write_atomic(folder / "README.md", to_bytes(public(_card(cells))))
        write_atomic(folder / "leaderboard.csv", to_bytes(public(csv_text(cells, Ranks()))))
        texts = (_lines(cell.result, items.get(cell.cell, [])) for cell in cells if cell.result)
        write_atomic(folder / "scores.jsonl", b"".join(texts))
        for cell in cells:
            if cell.result and cell.result.headline:
                for name, content in every_eval_ever.files_of(cell, items.get(cell.cell, [])).items():
                    write_atomic(folder / EVALS / name, content)
        _write_site(folder, cells)
        models = _eval_results([cell.result for cell in cells if cell.result], tell)
        for name, text in models.items():
            write_atomic(folder / MODELS / name, text)
    except OSError as error:
        raise CellFailure(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    _say(folder, cells, models, tell)
    return ExitStatus.FAILED if any(cell.is_invalid for cell in cells) else ExitStatus.COMPLETE


def _write_site(folder: Path, cells: Sequence[CellReport]) -> None:
    """Write the site of ``cells`` with previews of their images.

    It is built from a copy of the report in output/, so that existing parts are reused. The report itself
    stays unchanged, because it also shows the failures of its run."""
    ranks, unreadable = Ranks(), list[str]()
    over_steps = curves([cell.result for cell in cells if cell.result])
    sections = sections_of()
    for section in sections:
        section.read(cells, unreadable.append)
    found = Found(sections, over_steps, unreadable)
    own, making = output_root() / SITE, folder / _MAKING
    shutil.rmtree(making, ignore_errors=True)  # a killed call may have left it
    try:
        if own.is_dir():
            with held(output_root() / ".report.lock"):
                shutil.copytree(own, making / SITE)
        page, _ = write_site(making, cells, found, ranks, 0)
        copy_site(page.parent, folder / SITE, public, _public_setting)
    except shutil.Error as error:  # copytree collects the errors of all files; report the first
        raise OSError(0, str(error.args[0][0][2]), str(making)) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _public_setting(text: str) -> str:
    """Return a setting as the report shows it (possibly JSON), without folders of this machine."""
    if not text.startswith(("{", "[")):
        return str(without_folders(text))
    try:
        return json.dumps(without_folders(json.loads(text)), ensure_ascii=False, sort_keys=True)
    except ValueError:  # the report cut a long setting, so it is not JSON any more
        return "not published: it is too long"


def _say(folder: Path, cells: Sequence[CellReport], models: Iterable[str], tell: Tell) -> None:
    results = [cell.result for cell in cells if cell.result]
    withheld = sum(not one.headline for one in results)
    without = f", {withheld} of them withheld and without scores" if withheld else ""
    place = shlex.quote(short_path(folder))
    tell(f"published in {short_path(folder)}: {counted(len(results), 'result')}{without}")
    repos = dict.fromkeys(Path(name).parent.parent.as_posix() for name in models)
    if not repos:
        tell(
            "no .eval_results: no result is a complete, official measurement of a model on the Hub, by a benchmark "
            "whose dataset is there"
        )
    tell(f"nothing was uploaded; to do so: hf upload <you>/<name> {place} . --repo-type dataset")
    for repo in map(shlex.quote, repos):
        tell(
            f"to propose its .eval_results to a model: hf upload {repo} {place}/{MODELS}/{repo} . --create-pr"
        )


# ---- the dataset


def _lines(result: Result, items: Sequence[ItemView]) -> bytes:
    if result.withheld.startswith(STALE):  # the scores are of images that do not exist any more
        return b""
    return to_bytes(
        public("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in _scores(result, items)))
    )


def _scores(result: Result, items: Sequence[ItemView]) -> Iterator[dict[str, Any]]:
    """Yield a row for each part of each metric. All rows have the same columns."""
    prompts = {item.id: item for item in items}
    for name, metric in result.metrics.items():
        for part in metric.parts:
            item = prompts.get(part.item)
            yield {
                "model": result.model,
                "benchmark": result.benchmark,
                "benchmark_version": result.benchmark_version,
                "evaluator": result.evaluator.id,
                "metric": name,
                "headline": name in result.headline,
                "item": part.item,
                "prompt": item.prompt if item else "",
                "image_sha256": item.image_sha256 if item else "",
                "score": part.total / part.weight if part.weight else None,
                "total": part.total,
                "weight": part.weight,
                "group": part.group,
                "cluster": part.unit,
                "scale": metric.scale,
                "limit": result.limit,
                "caveats": "; ".join(caveats(result)),
            }


def _card(cells: Sequence[CellReport]) -> str:
    from huggingface_hub import DatasetCardData

    results = [cell.result for cell in cells if cell.result]
    lines = sum(len(metric.parts) for result in results for metric in result.metrics.values())
    data = DatasetCardData(
        pretty_name="Scores of image generation models",
        task_categories=["text-to-image"],
        size_categories=next((size for most, size in _SIZES.items() if lines < most), "n>1M"),
        tags=[_MARK, "evaluation", "leaderboard"],
        configs=[
            {"config_name": "leaderboard", "data_files": "leaderboard.csv", "default": True},
            {"config_name": "scores", "data_files": "scores.jsonl"},
        ],
    )
    remarks = grouped(((why, one) for one in results for why in caveats(one)), lambda each: each[0])
    licences = dict.fromkeys(line for one in results for line in _licences(one.benchmark))
    named = [
        f"- {why}: {', '.join(f'{one.model} / {one.benchmark}' for _, one in of)}"
        for why, of in remarks.items()
    ]
    parts = [
        f"---\n{data.to_yaml()}\n---\n",
        "Scores of image generation models, measured with ImageEvalKit. `leaderboard.csv` has a row for each metric of "
        "each model and benchmark, `scores.jsonl` one for each item of each metric; "
        f"`{EVALS}/` the same in the format of [Every Eval Ever](https://github.com/evaleval/every_eval_ever) "
        f"(schema {every_eval_ever.VERSION}). `{SITE}/index.html` shows them with small pictures.\n",
        "Prompts and questions are the benchmarks' own: their licences hold for them.\n",
        *[f"{line}\n" for line in licences],
        markdown_text([cell for cell in cells if cell.result]).rstrip() + "\n",
        *(
            ["## Results that are no complete, official measurement\n", "\n".join(named) + "\n"]
            if named
            else []
        ),
    ]
    return "\n".join(parts)


def _licences(benchmark: str) -> list[str]:
    try:
        assets = registry.benchmark_files(benchmark).local
    except (CellFailure, UserError):  # the benchmark was removed
        return []
    return [f"- {benchmark}: {licence}" for licence in dict.fromkeys(one.licence for one in assets)]


# ---- the models


def _eval_results(results: Sequence[Result], tell: Tell) -> dict[str, str]:
    """Return ``.eval_results/<benchmark>.yaml`` of each model, by path, for full, official results only.

    ``tell`` gets a line for each model that is left out. These are Hub models with changed weights or
    settings, and models that would share a file.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    found, of_model = dict[str, str](), dict[str, dict[str, None]]()
    left_out = dict[str, None]()
    for result in results:
        model = every_eval_ever.hub_path(result)
        dataset = _dataset(result.benchmark)
        if caveats(result) or not dataset or not model:
            continue
        if why := every_eval_ever.why_not_of_hub(result):
            left_out[f"no .eval_results of {result.model}: it is not {model} as it is on the Hub: {why}"] = (
                None
            )
            continue
        entries = [
            EvalResultEntry(
                dataset_id=dataset,
                task_id=result.benchmark
                if len(result.headline) == 1
                else f"{result.benchmark}_{name}".replace("/", "_"),
                value=metric.value,
                date=str(result.provenance.get("time", "")) or None,
                notes=public(f"ImageEvalKit, {result.score_name(name)}, version {result.benchmark_version}"),
            )
            for name in result.headline
            if (metric := result.metrics[name]).value is not None
        ]
        # the first result of a model is by the latest evaluator: it wins
        path = f"{model}/.eval_results/{result.benchmark}.yaml"
        found.setdefault(path, yaml_dump(eval_result_entries_to_yaml(entries)))
        of_model.setdefault(path, {})[result.model] = None
    for path, names in of_model.items():
        if len(names) > 1:
            del found[path]
            left_out[f"no {path}: {' and '.join(names)} are both that model; remove all but one"] = None
    for line in left_out:
        tell(line)
    return found


def _dataset(benchmark: str) -> str:
    try:
        cls = registry.benchmark_class(benchmark)
    except CellFailure:
        return ""
    return cls.hub_dataset if cls else ""
