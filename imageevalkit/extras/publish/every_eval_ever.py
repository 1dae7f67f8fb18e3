"""Write results with their samples in the format of Every Eval Ever.

The schema is version 0.3.0 of github.com/evaleval/every_eval_ever.

Each result has a file ``data/<collection>/<developer>/<model>/<uuid>.json`` and beside it a file of samples,
one line for each item and headline metric. Fields follow the format's contributors' guide. Unknown facts (the
publisher, its relation to the model's developer) are "unknown" or "other".
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from imageevalkit import registry
from imageevalkit.assets import FileAsset
from imageevalkit.assets.weights import may_be_hub_id
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.text import to_bytes
from imageevalkit.metrics import grouped
from imageevalkit.report.collect import CellReport, ItemView
from imageevalkit.report.sharing import caveats, public, without_folders
from imageevalkit.store.fingerprint import settings_of
from imageevalkit.store.results import ItemPart, Metric, Result

VERSION = "0.3.0"
_LIBRARY = "ImageEvalKit"
_UNKNOWN = "unknown"
_ADDED = ("kwargs.lora", "kwargs.denoiser")  # weights beside the model's repository
_UNITS = {1.0: "proportion", 100.0: "percent"}


def model_id(result: Result) -> str:
    """Return ``developer/model`` if the result is of an unchanged model of the Hugging Face Hub.

    Else the id is ``unknown/<name>``."""
    hub = hub_path(result)
    if hub and not why_not_of_hub(result):
        return hub
    name = re.sub(r"[^\w.@+-]+", "_", result.model).strip(".")
    return f"{_UNKNOWN}/{name}"


def hub_path(result: Result) -> str:
    """Return the Hub repository of the result's model; empty if there is none, or several."""
    paths = {str(one.get("model_path", "")) for one in _settings(result)}
    return path if len(paths) == 1 and may_be_hub_id(path := paths.pop()) else ""


def why_not_of_hub(result: Result) -> str:
    """Return why a result is not of the unchanged model at :func:`hub_path`; empty if it is."""
    for one in _settings(result):
        # settings name local files as "weights" or "weights of kwargs.lora"
        if local := [name for name in one if name.startswith("weights")]:
            return f"it has {local[0]} of its own"
        if added := [name for name in _ADDED if one.get(name)]:
            return f"it has {added[0]}"
        kwargs = _kwargs(one)
        if not any(kwargs == default for default in _defaults(one)):
            return "its settings differ from every entry of its model"
    return ""


def _defaults(settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the default settings of each registry entry of the model; empty settings without one."""
    entries = registry.models().MODEL_SETTINGS.get(str(settings.get("task")), {}).values()
    same = [one for one in entries if one.get("model_path") == settings.get("model_path")]
    if not same:
        yield {}
    for entry in same:
        yield _kwargs(json.loads(json.dumps(settings_of(str(settings["task"]), entry))))


def _kwargs(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name.startswith("kwargs.")}


def files_of(report: CellReport, items: Sequence[ItemView]) -> dict[str, bytes]:
    """Return the files of a result with scores, content by path. ``items`` are the items of its cell."""
    assert report.result
    result = report.result
    model = model_id(result)
    what = result.score_name("").replace("/@", "@")
    time, part = result.provenance.get("time", ""), _part(result).removeprefix(".")
    about = f"{_LIBRARY}/{what}/{result.model}/{time}/{part or 'all'}"
    # the format requires a UUID of version 4; this one is a hash, so that the same result gets the same name
    name = str(uuid.UUID(bytes=hashlib.sha256(to_bytes(about)).digest()[:16], version=4))
    folder = f"data/imageevalkit-{_portable(result.benchmark)}/{'/'.join(map(_portable, model.split('/')))}"
    valued = {metric: found for metric, found in result.metrics.items() if found.value is not None}
    rows = list(_samples(result, {n: valued[n] for n in result.headline if n in valued}, items, about, model))
    samples = to_bytes(public("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)))
    log = {
        "schema_version": VERSION,
        "evaluation_id": about,
        "evaluation_timestamp": str(result.provenance.get("time", "")),
        "retrieved_timestamp": _epoch(result.provenance.get("time")),
        "source_metadata": {
            "source_name": _LIBRARY,
            "source_type": "evaluation_run",
            "source_organization_name": _UNKNOWN,
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": _LIBRARY,
            "version": str(result.provenance.get("imageevalkit", _UNKNOWN)),
            "additional_details": _texts({"git_commit": result.provenance.get("git_commit") or _UNKNOWN}),
        },
        "model_info": _model_info(result, model),
        "evaluation_results": [_result(result, name, found) for name, found in valued.items()],
    }
    if not rows:
        return {f"{folder}/{name}.json": _json(log)}
    log["detailed_evaluation_results"] = {
        "format": "jsonl",
        "file_path": f"{folder}/{name}_samples.jsonl",
        "hash_algorithm": "sha256",
        "checksum": hashlib.sha256(samples).hexdigest(),
        "total_rows": len(rows),
    }
    # the samples first, so that the file that names them never exists without them
    return {f"{folder}/{name}_samples.jsonl": samples, f"{folder}/{name}.json": _json(log)}


def _json(value: Any) -> bytes:
    return to_bytes(public(json.dumps(value, indent=1, ensure_ascii=False)) + "\n")


def _settings(result: Result) -> list[Mapping[str, Any]]:
    found = result.provenance.get("model_settings")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _portable(name: str) -> str:
    """Return ``name`` as a folder name that every operating system accepts."""
    safe = re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "_", name).rstrip(". ")
    return f"{safe}_" if safe in ("", "data") else safe


def _epoch(time: Any) -> str:
    try:
        return str(datetime.fromisoformat(time).timestamp())
    except (TypeError, ValueError):
        return "0"


def _texts(details: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(without_folders(value), sort_keys=True)
        for name, value in details.items()
        if value not in (None, "", [], {})
    }


def _model_info(result: Result, model: str) -> dict[str, Any]:
    settings = _settings(result)
    by_api = any("host" in one for one in settings)
    on_hub = not model.startswith(f"{_UNKNOWN}/")
    details = {
        "deployment_type": "externally_managed" if by_api else "self_deployed" if settings else _UNKNOWN,
        "model_availability": "open_weights" if on_hub and not by_api else _UNKNOWN,
        "settings": settings,
        "packages": result.provenance.get("model_packages"),
    }
    hosts = sorted({str(one["host"]) for one in settings if one.get("host")})
    found = {"name": result.model, "id": model, "additional_details": _texts(details)}
    if on_hub:
        found["developer"] = model.split("/")[0]
    if hosts:
        found["inference_platform"] = ", ".join(hosts)
    return found


def _result(result: Result, name: str, metric: Metric) -> dict[str, Any]:
    value = metric.value or 0.0
    low, high = -metric.scale if value < 0 else 0.0, metric.scale
    coverage = vars(result.coverage)
    return {
        "evaluation_result_id": name,
        "evaluation_name": _evaluation(result, name),
        "source_data": _source(result),
        "metric_config": {
            "evaluation_description": f"{name} of {result.benchmark}, version {result.benchmark_version}, measured by "
            f"{result.evaluator.id}",
            "metric_id": f"{result.benchmark}.{name}",
            "metric_name": name,
            "metric_unit": _UNITS.get(float(metric.scale), "points"),
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": low if low <= value else "-Infinity",
            "max_score": high if value <= high else "Infinity",
            "additional_details": _texts(
                {
                    "evaluator": result.evaluator.id,
                    "official_evaluator": result.evaluator.official,
                    "evaluator_details": result.evaluator.details,
                    "headline": name in result.headline,
                }
            ),
        },
        "score_details": {
            "score": value,
            "details": _texts(
                {
                    "state": result.state,
                    "caveats": "; ".join(caveats(result)),
                    "missing_items": result.treatment,
                    "limit": result.limit,
                    **coverage,
                }
            ),
            "uncertainty": {"num_samples": metric.n} | _interval(metric),
        },
    }


def _evaluation(result: Result, metric: str) -> str:
    """Return a name such as ``imageevalkit.wise.overall``. Rewritten prompts and subsets have other names."""
    what = result.score_name("").partition("/")[0]
    return f"imageevalkit.{what}.{metric}{_part(result)}"


def _part(result: Result) -> str:
    """Return the suffix of names for a subset of items, such as ``.first-8``; else an empty text."""
    coverage = result.coverage
    first = f".first-{result.limit}" if result.limit else ""
    return f"{first}.asked-{coverage.asked}" if coverage.unasked else first


def _interval(metric: Metric) -> dict[str, Any]:
    if metric.interval is None:
        return {}
    low, high = metric.interval
    how = "score interval over prompts (imageevalkit.metrics)"
    return {"confidence_interval": {"lower": low, "upper": high, "confidence_level": 0.95, "method": how}}


def _source(result: Result) -> dict[str, Any]:
    name = result.benchmark
    hashes = _texts(
        {"data_sha256": result.provenance.get("data_sha256"), "version": result.benchmark_version}
    )
    found: dict[str, Any] = {"dataset_name": name, "source_type": "other", "additional_details": hashes}
    try:
        cls = registry.benchmark_class(name)
        assets = registry.benchmark_files(name).assets
    except (CellFailure, UserError):  # the benchmark was removed
        return found
    if cls and cls.hub_dataset:
        return {**found, "source_type": "hf_dataset", "hf_repo": cls.hub_dataset}
    urls = dict.fromkeys(
        f"https://github.com/{one.repo}/tree/{one.commit}" for one in assets if isinstance(one, FileAsset)
    )
    return {**found, "source_type": "url", "url": list(urls)} if urls else found


def _samples(
    result: Result, metrics: Mapping[str, Metric], items: Sequence[ItemView], about: str, model: str
) -> Iterator[dict[str, Any]]:
    """Yield a line for each metric and item with a score. ``score`` is on the scale of the metric."""
    by_id = {item.id: item for item in items}
    for name, metric in metrics.items():
        for id, parts in grouped(metric.parts, lambda part: part.item).items():
            if (weight := sum(part.weight for part in parts)) and id in by_id:
                score = sum(part.total for part in parts) / weight
                row = _sample(by_id[id], score, metric.scale, parts)
                yield {
                    "schema_version": VERSION,
                    "evaluation_id": about,
                    "model_id": model,
                    "evaluation_name": _evaluation(result, name),
                    "evaluation_result_id": name,
                    "sample_id": id,
                    "interaction_type": "single_turn",
                    **row,
                    "answer_attribution": [
                        {
                            "turn_idx": 0,
                            "source": "output.raw",
                            "extracted_value": f"{score:g}",
                            "extraction_method": result.evaluator.id,
                            "is_terminal": True,
                        }
                    ],
                }


def _sample(item: ItemView, score: float, scale: float, parts: Sequence[ItemPart]) -> dict[str, Any]:
    given = {"raw": item.prompt, "reference": list[str]()}
    # the format's guide defines this hash of the model's input
    joined = json.dumps(given, sort_keys=True, separators=(",", ":"))
    facts = {
        "image_sha256": item.image_sha256,
        "seed": item.seed,
        "cluster": parts[0].cluster,
        "group": parts[0].group,
        "weight": sum(part.weight for part in parts),
        **{f"key.{name}": value for name, value in item.keys.items()},
    }
    return {
        "sample_hash": hashlib.sha256(to_bytes(joined)).hexdigest(),
        "input": {**given, "formatted": item.rewritten[1] if item.rewritten else None},
        "output": {"raw": [item.path]},
        # the format requires a boolean: only the full score is correct
        "evaluation": {"score": score, "is_correct": score >= scale},
        "metadata": _texts(facts),
    }
