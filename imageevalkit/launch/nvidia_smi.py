"""The program ``nvidia-smi``: the only thing that tells the launcher, which has no CUDA, of the GPUs there are."""

from __future__ import annotations

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass

from imageevalkit.errors import UserError

SECONDS = 60  # a driver that initialises many GPUs without persistence mode takes tens of seconds
# The manual page of nvidia-smi: 14 = "infoROM is corrupted", a warning beside a full answer.
ANSWERED = (0, 14)
_NONE_HERE = "No devices were found"  # a node without GPUs of ours: a job of a cluster that asked for none
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)\s]+)\)")
_MIG_LINE = re.compile(r"\s+MIG .*Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")


@dataclass(frozen=True)
class Device:
    """A GPU: its index and UUID; ``migs`` are the UUIDs of its MIG devices by index, None where MIG is off."""

    index: str
    uuid: str
    migs: dict[str, str] | None = None


def devices(environ: Mapping[str, str]) -> list[Device]:
    """Every GPU of the machine; none where there is no ``nvidia-smi``.

    Raises:
        UserError: ``nvidia-smi`` is there, but fails.
    """
    rows = csv_rows(_ask(["--query-gpu=index,uuid,mig.mode.current", "--format=csv,noheader"], environ), 3)
    migs = _mig_devices(environ) if any(mode == "Enabled" for _, _, mode in rows) else {}
    return [
        Device(index, uuid, migs.get(uuid, {}) if mode == "Enabled" else None) for index, uuid, mode in rows
    ]


def mig_of_instance(device: Device, instance: str, environ: Mapping[str, str]) -> str | None:
    """The UUID of the MIG device of ``device`` that drivers before R470 called ``MIG-GPU-…/<instance>``.

    ``instance`` is "<GPU instance>/<compute instance>". None where there is no such MIG device.
    """
    try:
        log = ElementTree.fromstring(_ask(["-q", "-x"], environ) or "<none/>")
    except ElementTree.ParseError as error:
        raise UserError(f"nvidia-smi -q -x gives no XML ({error}); name MIG devices by UUID") from None
    for gpu in log.findall("gpu"):
        if gpu.findtext("uuid", "").strip() != device.uuid:
            continue
        for mig in gpu.iter("mig_device"):
            ids = [mig.findtext(f"{kind}_instance_id", "").strip() for kind in ("gpu", "compute")]
            if "/".join(ids) == instance:
                return (device.migs or {}).get(mig.findtext("index", "").strip())
    return None


def csv_rows(text: str, columns: int) -> list[list[str]]:
    """The lines of ``text`` that have as many ``columns``: warnings stand between them."""
    rows = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == columns]


def failure(said: str) -> UserError:
    """What to tell of an ``nvidia-smi`` that ended badly and ``said`` something."""
    last = (said.strip().splitlines() or ["no message"])[-1]
    return UserError(
        f"nvidia-smi failed ({last}); mend the driver, or run without GPUs: CUDA_VISIBLE_DEVICES="
    )


def silence() -> UserError:
    """What to tell of an ``nvidia-smi`` that does not end."""
    return UserError(f"nvidia-smi did not answer within {SECONDS} s; check the GPU driver")


def _mig_devices(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    gpu = ""
    for line in _ask(["-L"], environ).splitlines():
        if match := _GPU_LINE.match(line):
            gpu = match[2]
        elif match := _MIG_LINE.match(line):
            found.setdefault(gpu, {})[match[1]] = match[2]
    return found


def _ask(words: list[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=dict(environ),
            check=False,
        )
    except FileNotFoundError:
        return ""
    except subprocess.TimeoutExpired:
        raise silence() from None
    said = done.stdout + done.stderr
    if done.returncode in ANSWERED:
        return done.stdout
    if _NONE_HERE in said:
        return ""
    raise failure(said)
