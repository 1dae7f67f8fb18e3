"""What checkpoints tell of themselves: an index names its shards, a pipeline its parts, a safetensors file its size."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from imageevalkit.asset_checks.file_facts import is_there, read_json
from imageevalkit.asset_checks.hub_record import chosen, may_choose_below

_LONGEST_HEADER = 100_000_000  # bytes, as the format's own library has it


def index_problems(folder: Path, patterns: Sequence[str] = ()) -> list[str]:
    """A sentence for each part of the checkpoint in ``folder`` that is said to be there and is not, or is cut short.

    What ``patterns`` leave out (empty: nothing) is not missed.
    """
    problems = [*_missing_parts(folder, patterns), *_missing_shards(folder, patterns)]
    for path in sorted(folder.rglob("*.safetensors")):
        if is_there(path) and (problem := _cut_short(path)):
            problems.append(f"{path.relative_to(folder).as_posix()} {problem}")
    return problems


def _missing_parts(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    pipeline = read_json(folder / "model_index.json")
    for part, made_by in pipeline.items() if isinstance(pipeline, dict) else ():
        # [null, null] is a part that the pipeline does without
        is_part = not part.startswith("_") and isinstance(made_by, list) and any(made_by)
        is_wanted = is_part and any(may_choose_below(pattern, part) for pattern in patterns or ["*"])
        if is_wanted and not any(map(is_there, (folder / part).glob("*"))):
            yield f"model_index.json names the part {part}, which is missing"


def _missing_shards(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    # a half-precision copy has an index.fp16.json
    for index in sorted(folder.rglob("*.index*.json")):
        value = read_json(index)
        shards = value.get("weight_map") if isinstance(value, dict) else None
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
        for name in names:
            path = (index.parent / name).relative_to(folder).as_posix()
            if chosen([path], patterns) and not is_there(folder / path):
                yield f"{index.relative_to(folder).as_posix()} names {name}, which is missing"


def _cut_short(path: Path) -> str:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        end = max((t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"), default=0)
        size = path.stat().st_size
    except (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return "is no safetensors file"
    expected = 8 + length + end
    return "" if size == expected else f"has {size} bytes instead of {expected}"
