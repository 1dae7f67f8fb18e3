"""GPUs as a run sees them: NVML beside torch, device masks, the leases of two runs, and the floor of free memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from imageevalkit.plan.gpus import memory, visible_gpus
from perf.toolkit import BENCHMARK
from tests.gpu.kit import Kit
from tests.gpu.part import Part

_IMAGES = 3
_MIB = 1 << 20
_HELD = 0.2
"""The share of a GPU's memory that another process holds: more than GPU_MIN_FREE_MEMORY allows."""
_SEEN = """
import json, torch
count = torch.cuda.device_count()
print(json.dumps([str(torch.cuda.get_device_properties(n).uuid) for n in range(count)]))
"""
_HOLD = """
import sys, torch
total = torch.cuda.get_device_properties(0).total_memory
held = torch.empty(int(float(sys.argv[1]) * total), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def examine(part: Part) -> None:
    """Examine the GPUs of this machine."""
    part.attempt("NVML beside torch", _nvml, part)
    part.attempt("device masks", _masks, part)
    kit = Kit(part, part.folder / "tree", _IMAGES)
    kit.add("holding", "tests.gpu.models", "Holding", gpus=1)
    part.attempt("leases of two runs", _leases, part, kit)
    part.attempt("the floor of free memory", _floor, part, kit)


def _start(kit: Kit, folder: Path, until: Path) -> subprocess.Popen[str]:
    """A run of the model with results in ``folder``, which generates no image before the file ``until`` exists."""
    return kit.start(
        *("--model_names", "holding", "--ds_names", BENCHMARK, "--eval", "false", "--replicas", "1"),
        *("--custom_model_kwargses", f"spans={folder}.spans,until={until}"),
        IMAGEEVALKIT_OUTPUT=str(folder / "output"),
        IMAGEEVALKIT_LOG=str(folder / "log"),
    )


def _nvml(part: Part) -> None:
    import torch

    problems, sizes = [], memory()
    gpus = visible_gpus()
    seen = [f"GPU-{torch.cuda.get_device_properties(n).uuid}" for n in range(torch.cuda.device_count())]
    if [gpu.key for gpu in gpus] != seen:
        problems.append(f"NVML shows {[gpu.key for gpu in gpus]}, torch {seen}")
    total = torch.cuda.get_device_properties(0).total_memory / _MIB
    reported = sizes[seen[0]]
    if abs(reported.total - total) > 0.03 * total:
        problems.append(f"NVML reports {reported.total:.0f} MiB in all, torch {total:.0f}")
    free = torch.cuda.mem_get_info(0)[0] / _MIB
    before = memory()[seen[0]].free
    if abs(before - free) > 0.02 * total:
        problems.append(f"NVML reports {before:.0f} MiB free, torch {free:.0f}")
    held = torch.empty(int(0.1 * total) * _MIB, dtype=torch.uint8, device="cuda")
    taken = before - memory()[seen[0]].free
    if abs(taken - held.numel() / _MIB) > 0.01 * total:
        problems.append(f"{held.numel() / _MIB:.0f} MiB were allocated, NVML reports {taken:.0f}")
    part.check("NVML and torch: the same GPUs, total and free memory", problems, f"{total / 1024:.1f} GiB")


def _masks(part: Part) -> None:
    gpu = visible_gpus()[0]
    masks = {"": [], gpu.name: [gpu.key], gpu.key: [gpu.key]}
    started = {
        mask: subprocess.Popen(
            [sys.executable, "-c", _SEEN],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": mask, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for mask in masks
    }
    problems = []
    for mask, wanted in masks.items():
        keys = [f"GPU-{uuid}" for uuid in json.loads(started[mask].communicate()[0])]
        ours = [each.key for each in visible_gpus({"CUDA_VISIBLE_DEVICES": mask})]
        if not keys == ours == wanted:
            problems.append(f"CUDA_VISIBLE_DEVICES={mask}: torch sees {keys}, a run {ours}")
    part.check("CUDA_VISIBLE_DEVICES by index, by UUID, empty: torch and a run see the same", problems)


def _leases(part: Part, kit: Kit) -> None:
    folders, until = [part.folder / name for name in ("one", "two")], part.folder / "until"
    holder = _start(kit, folders[0], until)
    while holder.poll() is None and not Path(f"{folders[0]}.spans.begun").exists():
        time.sleep(0.05)
    other = _start(kit, folders[1], until)
    has_waited = _says(other, "held by another run")
    until.touch()
    print(holder.communicate()[0], other.communicate()[0], sep="\n", flush=True)
    spans = [_spans(folder) for folder in folders]
    problems = [f"{len(each)} of {_IMAGES} images were generated" for each in spans if len(each) < _IMAGES]
    if not problems:
        first, second = sorted(spans)
        if max(end for _, end in first) > min(start for start, _ in second):
            problems.append("both runs had the GPU at the same time")
    if not has_waited:
        problems.append("the second run did not report that it waits for the first")
    part.check("two runs: one has the GPU, the other waits for it", problems)


def _floor(part: Part, kit: Kit) -> None:
    folder = part.folder / "three"
    command = [sys.executable, "-c", _HOLD, str(_HELD)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    if holder.stdout.readline() != "held\n":
        raise RuntimeError("another process cannot take GPU memory")
    run = _start(kit, folder, until=folder.parent)
    has_waited = _says(run, "in use by another process")
    holder.communicate("")
    print(run.communicate()[0], flush=True)
    problems = [] if has_waited else ["the run did not wait"]
    if len(_spans(folder)) < _IMAGES:
        problems.append("the run did not resume when the memory was free")
    part.check("a run waits until GPU_MIN_FREE_MEMORY is free", problems)


def _says(run: subprocess.Popen[str], words: str) -> bool:
    """Prints the output of ``run`` until a line contains ``words``. Returns False if the run ends without them."""
    assert run.stdout
    for line in run.stdout:
        print(line, end="", flush=True)
        if words in line:
            return True
    return False


def _spans(folder: Path) -> list[tuple[float, float]]:
    file = Path(f"{folder}.spans")
    if not file.exists():
        return []
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return [(float(row[0]), float(row[1])) for row in rows]
