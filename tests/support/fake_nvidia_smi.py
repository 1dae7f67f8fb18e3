"""A fake ``nvidia-smi`` that shows the GPUs a test wants, whose memory a test may change while somebody runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

GIB = 1024  # MiB
TOTAL, RESERVED = 80 * GIB, 1  # the driver keeps a little for itself

_PROGRAM = """#!/bin/sh
case "$*" in
"--query-gpu=index,uuid,mig.mode.current --format=csv,noheader") file=gpus ;;
"--query-gpu=uuid,memory.total,memory.free --format=csv,noheader,nounits") file=memory ;;
"-L") file=list ;;
*) echo "unexpected: $*"; exit 2 ;;
esac
cd "$(dirname "$0")" || exit 2
[ ! -e "slow.$file" ] || sleep "$(cat "slow.$file")"
echo "$*" >>asked
cat "answer.$file" && exit "$(cat "status.$file" 2>/dev/null || echo 0)"
"""


def install_fake_nvidia_smi(
    folder: Path,
    uuids: Sequence[str],
    failure: str = "",
    status: int = 18,
    migs: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Put the fake into ``folder``; returns an environment that finds it, without CUDA_VISIBLE_DEVICES.

    ``migs`` are the MIG devices of the GPUs in MIG mode, by UUID. With ``failure`` it says so, with ``status``.
    """
    migs = migs or {}
    rows, listed = [], []
    for index, uuid in enumerate(uuids):
        mode = "Enabled" if uuid in migs else ("Disabled" if migs else "[N/A]")
        rows.append(f"{index}, {uuid}, {mode}")
        listed.append(f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: {uuid})")
        for number, mig in enumerate(migs.get(uuid, ())):
            listed.append(f"  MIG 1g.10gb     Device  {number}: (UUID: {mig})")
    _write(folder, "answer.gpus", failure or "\n".join(rows))
    _write(folder, "answer.list", "\n".join(listed))
    if failure:
        _write(folder, "status.gpus", str(status))
    set_memory(folder, {uuid: None if uuid in migs else 0.0 for uuid in uuids})
    fake = folder / "nvidia-smi"
    fake.write_text(_PROGRAM)
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ


def set_memory(folder: Path, used: Mapping[str, float | None]) -> None:
    """GPUs of 80 GiB with this much in use, in GiB, by UUID; None: not told."""
    rows = [
        f"{uuid}, [N/A], [N/A]" if gib is None else f"{uuid}, {TOTAL}, {TOTAL - RESERVED - round(gib * GIB)}"
        for uuid, gib in used.items()
    ]
    _write(folder, "answer.memory", "\n".join(rows))


def fail_memory(folder: Path, said: str, status: int) -> None:
    """From now on the question for memory fails."""
    _write(folder, "answer.memory", said)
    _write(folder, "status.memory", str(status))


def slow_memory(folder: Path, seconds: float) -> None:
    """The question for memory takes so long from now on."""
    _write(folder, "slow.memory", str(seconds))


def times_asked(folder: Path, about: str) -> int:
    """How often it was asked with ``about`` among its arguments."""
    path = folder / "asked"
    return sum(about in line for line in path.read_text().splitlines()) if path.exists() else 0


def _write(folder: Path, name: str, text: str) -> None:
    part = folder / f".{name}"
    part.write_text(f"{text}\n")
    part.replace(folder / name)  # whoever asks meanwhile reads the old answer or the new one
