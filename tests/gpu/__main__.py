"""Examines the toolkit on a GPU: ``bash test.sh --gpu``. With ``--tiny`` it runs the same code on the CPU.

Each part is a process of its own with a time limit: if it fails or hangs, the others still run. The table gets each row
at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from perf.harness import REPO, Row, Table
from tests.gpu.part import COLUMNS, NO_TIME, PARTS, TINY_PARTS, read_rows
from tests.gpu.written import Document, described

_LONGEST = 530.0
"""Seconds for all parts on a GPU, after the warm-up."""
_TINY_LONGEST = 600.0
"""Seconds for a part on the CPU, which may be busy."""
_WARM_UP = "import torch, diffusers, transformers; torch.zeros(1, device='cuda')"
_LONGEST_WARM_UP = 60.0
"""Seconds in which a cold disk may deliver these packages. Otherwise the first parts would wait for them."""
PACKAGES = Path(os.environ.get("DREAMSIM_PACKAGES") or Path(sys.prefix) / "dreamsim-packages")
"""open_clip and its like, where they are not in this Python's environment."""
_SHORTEST = 20.0
"""Seconds with which a part is started, at least."""
_LOGS = REPO / "log" / "gpu"
_ROOM = 40 << 30
"""Bytes of free memory with which the checkpoints of the parts lie in memory, not on a disk."""


def main() -> int:
    """Examine the parts that the command line names. The exit status is 1 if a row failed or missed its bar."""
    parser = argparse.ArgumentParser(prog="bash test.sh --gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="tiny models on the CPU; no bars of speed")
    parser.add_argument("--parts", metavar="A,B", help=f"which parts, in this order, of {','.join(PARTS)}")
    parser.add_argument(
        "--seconds", type=float, default=_LONGEST, help="for all parts on a GPU (%(default)g)"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into this document too")
    given = parser.parse_args()
    known = TINY_PARTS if given.tiny else [*PARTS]
    chosen = given.parts.split(",") if given.parts else known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--parts {','.join(unknown)}: use {','.join(known)}")
    try:
        machine = described(given.tiny)
    except RuntimeError as error:
        parser.error(str(error))
    table = Table(machine, *COLUMNS)
    document = Document(given.write, machine) if given.write else None
    if not given.tiny:
        _warm_up()
    end = time.monotonic() + (_TINY_LONGEST * len(chosen) if given.tiny else given.seconds)
    for name in chosen:
        started, rows = time.monotonic(), list[Row]()
        for row in _examine(name, given.tiny, end):
            rows.append(row)
            table.add(row)
            if document:
                document.write(name, rows)
        print(f"    {name}: {time.monotonic() - started:.0f} s", flush=True)
    return table.status


def _warm_up() -> None:
    """Import the large packages once, in a process that ends."""
    started = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", _WARM_UP],
            cwd=REPO,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LONGEST_WARM_UP,
            check=False,
        )
    print(f"    warm-up: {time.monotonic() - started:.0f} s", flush=True)


def _examine(name: str, tiny: bool, end: float) -> Iterator[Row]:
    """Run the part ``name``, at most until the time ``end``; yields its rows."""
    limit, left = _TINY_LONGEST if tiny else PARTS[name].seconds, end - time.monotonic()
    seconds, is_shortened = min(limit, left), left < limit
    no_time = Row(name, float("nan"), skipped=f"{NO_TIME}: bash test.sh --gpu --parts {name}")
    if seconds < _SHORTEST:
        yield no_time
        return
    log = _LOGS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-", dir=_place(tiny), ignore_cleanup_errors=True) as folder:
        rows, count = Path(folder) / "rows.jsonl", 0
        work = Path(folder) / "work"
        work.mkdir()
        options = ["--folder", str(work), "--rows", str(rows), "--seconds", str(seconds)]
        command = [sys.executable, "-m", "tests.gpu.part", name, *options, *["--tiny"] * tiny]
        stop = time.monotonic() + seconds
        with log.open("w", encoding="utf-8") as out:
            process = subprocess.Popen(
                command, cwd=REPO, env=_environ(name, tiny), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            try:
                while process.poll() is None and time.monotonic() < stop:
                    time.sleep(0.2)
                    for row in read_rows(rows, count):
                        count += 1
                        yield row
            finally:
                status = process.poll()
                _end(process)
        yield from read_rows(rows, count)
    if status is None and is_shortened:
        yield no_time
    elif status != 0:
        how = f"ended with status {status}" if status is not None else f"ended after its {seconds:.0f} s"
        words = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
        yield Row(name, float("nan"), problems=[f"{how}; {log.relative_to(REPO)}: {words[-500:]}"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and all that it has started, also in sessions of their own."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _environ(name: str, tiny: bool) -> dict[str, str]:
    """The variables of the part ``name``."""
    paths = [REPO, REPO / "infer"]
    if name == "metrics" and PACKAGES.is_dir():
        # open_clip and the torchvision that it imports, whose operators need a torch for CUDA
        paths += [*[REPO / "tests/support/torchvision_ops"] * tiny, PACKAGES]
    ours = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    environ = {**os.environ, **ours}
    # threads of numerical libraries wait for each other by spinning, where anything else runs beside them
    return {**environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if tiny else environ


def _place(tiny: bool) -> str | None:
    """Where the files of a part go: main memory where it has room, since a disk may take minutes for a model."""
    memory = Path("/dev/shm")
    if not tiny and memory.is_dir() and shutil.disk_usage(memory).free > _ROOM:
        return str(memory)
    return None


if __name__ == "__main__":
    sys.exit(main())
