"""Finds the checkpoints of a training run by step, and checks whether a checkpoint is completely written."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from imageevalkit.assets import read_json
from imageevalkit.assets.check import WEIGHTS_SUFFIXES, checkpoint_problems, cut_short
from imageevalkit.common.errors import UserError

# checkpoint-1000, step_0001000, epoch=3-step=4000, 1000
_STEP = re.compile(r"(?:.*[^0-9])?([0-9]{1,18})", re.ASCII)
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})(\.\w+)", re.ASCII)
# names that trainers and downloaders give to unfinished files and folders
_UNFINISHED = re.compile(r"\.|tmp\b|tmp[-_]|.*\.(?:tmp|temp|part|partial|incomplete|lock)$", re.IGNORECASE)
# torch.save writes ZIP archives since 1.6. Their directory is at the end, so a truncated file has none.
_ZIPPED = (".bin", ".pt", ".pth", ".ckpt")
_ZIP_MAGIC = b"PK\x03\x04"
_DESCRIBED = ("model_index.json", "config.json", "adapter_config.json")
_USUAL = re.compile(r"checkpoint|ckpt|(global_?)?step|iter|epoch|#$", re.IGNORECASE)
_LOOKED_AT = 3  # folders per kind of name
_LORA = "pytorch_lora_weights.safetensors"  # the file name of diffusers' trainers


def step_of(path: Path) -> int | None:
    """Returns the number at the end of the name of ``path`` as a step, or None if there is no number."""
    number = _STEP.fullmatch(path.stem if path.suffix in WEIGHTS_SUFFIXES else path.name)
    return int(number[1]) if number else None


def is_checkpoint(folder: Path) -> bool:
    """Whether ``folder`` directly contains weights or a file that describes weights."""
    files = [path for path in folder.iterdir() if not path.is_dir()]
    return any(path.name in _DESCRIBED or path.suffix in WEIGHTS_SUFFIXES for path in files)


def steps_in(folder: Path, files: bool = False) -> dict[int, Path]:
    """Returns the checkpoints in ``folder`` by step, sorted, finished or not.

    Checkpoints are folders with a number at the end (``checkpoint-1000``, ``step_2000``, ``3000``). If there
    are none and ``files`` is set, weight files count (``lora-4000.safetensors``). Names of unfinished things
    (``tmp-checkpoint-1000``, ``….tmp``), hidden names and shards are skipped. If only some kinds of names
    have weights, the others are skipped: trainers write ``samples-1000`` beside ``checkpoint-1000``. Raises
    UserError if two checkpoints have the same step, OSError if ``folder`` cannot be read.
    """
    found = dict[int, Path]()
    listed = [path for path in sorted(folder.iterdir()) if not _UNFINISHED.match(path.name)]
    numbered = [(_STEP.fullmatch(path.name), path) for path in listed if path.is_dir()]
    if files and not any(number for number, _ in numbered):
        weights = (path for path in listed if path.suffix in WEIGHTS_SUFFIXES and not path.is_dir())
        numbered = [(_STEP.fullmatch(path.stem), path) for path in weights if not _SHARD.fullmatch(path.name)]
    for number, path in _with_weights([(number, path) for number, path in numbered if number]):
        if (other := found.setdefault(int(number[1]), path)) != path:
            raise UserError(
                f"{folder}: {other.name} and {path.name} are both of step {int(number[1])}: move one of them away"
            )
    return dict(sorted(found.items()))


_Numbered = tuple[re.Match[str], Path]


def _with_weights(numbered: list[_Numbered]) -> list[_Numbered]:
    """Returns the folders of ``numbered`` with the same kind of name (digits aside) as a folder with weights.

    If no folder has weights yet, returns the folders with usual names of checkpoints, or else all.
    """
    kinds = dict[str, list[_Numbered]]()
    for number, path in numbered:
        kinds.setdefault(re.sub("[0-9]+", "#", path.name), []).append((number, path))
    if len(kinds) < 2:
        return numbered
    # the first folders are finished; a look at all folders would be slow, since this runs once a second
    chosen = [
        name for name, kind in kinds.items() if any(_has_weights(path) for _, path in kind[:_LOOKED_AT])
    ]
    chosen = chosen or [name for name in kinds if _USUAL.match(name)] or [*kinds]
    return [one for name in chosen for one in kinds[name]]


def _has_weights(path: Path) -> bool:
    return not path.is_dir() or is_checkpoint(path) or any(map(is_checkpoint, path.glob("*/")))


def holds_checkpoints(folder: Path, files: bool = False) -> bool:
    """Whether ``folder`` contains checkpoints by step: it is no checkpoint itself, and everything in it with
    weights belongs to a step. Raises UserError and OSError as :func:`steps_in`.
    """
    steps = [*steps_in(folder, files).values()]
    if not steps or not steps[0].is_dir():
        # a single weight file may be a model whose name happens to end with a number
        of_weights = [path for path in folder.iterdir() if path.suffix in WEIGHTS_SUFFIXES]
        return 1 < len(steps) == len(of_weights)
    others = (path for path in folder.iterdir() if path.is_dir() and path not in steps)
    finished = (path for path in others if not _UNFINISHED.match(path.name))
    return not is_checkpoint(folder) and not any(map(is_checkpoint, finished))


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    """Returns size and modification time (ns) of each file of a checkpoint. Raises OSError if it vanishes."""
    return {
        _name(each, path): (about.st_size, about.st_mtime_ns)
        for each, about in ((each, each.stat()) for each in _files(path))
    }


def tells_all(path: Path) -> bool:
    """Whether the checkpoint ``path`` lists its files, so that :func:`what_lacks` finds all missing ones."""
    if not path.is_dir():
        return path.suffix == ".safetensors"
    return any((path / name).is_file() for name in (*_DESCRIBED, _LORA))


def what_lacks(path: Path) -> str:
    """Returns a line about the first missing or truncated file of the checkpoint ``path``, or "".

    Raises OSError as :func:`files_of`.
    """
    return next(_lacks(path, _files(path)), "")


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if files := sorted(each for each in path.rglob("*") if not each.is_dir()):
        return files
    path.stat()  # raises OSError if the folder has vanished: rglob would only find nothing
    return []


def _name(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix() if path != file else file.name


def _lacks(path: Path, files: list[Path]) -> Iterator[str]:
    for file in files:
        name = _name(file, path)
        if file.suffix in WEIGHTS_SUFFIXES and not file.stat().st_size:
            yield f"{name} is empty"
        elif _UNFINISHED.match(file.name) and not file.name.startswith("."):
            yield f"{name} is being written"
        elif file.suffix in _ZIPPED and _is_cut_zip(file):
            yield f"{name} is cut short"
        elif (file.name in _DESCRIBED or ".index." in file.name) and read_json(file) is None:
            yield f"{name} is no complete JSON"
        elif (shard := _SHARD.fullmatch(file.name)) and _count(files, shard) < int(shard[2]):
            yield f"{name} is one of {int(shard[2])} shards, of which {_count(files, shard)} are there"
    if path.is_dir():
        yield from checkpoint_problems(path)
    elif path.suffix == ".safetensors" and (problem := cut_short(path)):
        yield f"{path.name} {problem}"


def _count(files: list[Path], shard: re.Match[str]) -> int:
    """Returns how many shards of the same file exist."""
    alike = (_SHARD.fullmatch(file.name) for file in files)
    return sum(1 for found in alike if found and found.group(1, 2, 3) == shard.group(1, 2, 3))


def _is_cut_zip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC and not zipfile.is_zipfile(opened)
