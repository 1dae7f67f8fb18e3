"""The output of Slurm's programs is parsed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from imageevalkit.slurm.commands import Queued, Slurm, SlurmFailed


@pytest.mark.parametrize(
    "printed",
    ["Welcome to Cluster 3!\n12 nodes are down\n17\n", "\n17;east\r\nbye\n"],
)
def test_a_banner_beside_a_job_number_is_no_number(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(
        tmp_path, monkeypatch, sbatch=printed, squeue=f"{printed}17\tRUNNING\tNone\tn1\ta|b\tof me | too\n"
    )
    assert Slurm().submit(["--wrap=true"], os.environ) == "17"
    assert Slurm().queue() == {"17": Queued("RUNNING", "None", "n1", "a|b", "of me | too")}


def test_a_job_whose_number_sbatch_does_not_print_is_looked_for_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, sbatch="Submitted. Have a nice day.\n")
    with pytest.raises(SlurmFailed, match=r"sbatch printed no job number \(Submitted") as failure:
        Slurm().submit(["--wrap=true"], os.environ)
    assert failure.value.is_silent


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **prints: str) -> None:
    """Programs of these names that print this text."""
    for name, text in prints.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
        (folder / name).write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(folder / name))}.txt\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
