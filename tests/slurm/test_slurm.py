"""``--launcher slurm`` on a real Slurm: two nodes of two fake GPUs each, on this machine."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import (
    BENCHMARKS,
    MODELS,
    add_slow_model,
    count,
    hurry,
    needs_cluster,
    run_folder,
    start,
    states,
)
from tests.support.checkout import run_eval
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_cluster


def results(checkout: Path) -> dict[str, bytes]:
    """The scores of every cell, as they are on the disk."""
    output = checkout / "output"
    return {str(path.relative_to(output)): path.read_bytes() for path in output.glob("*/*/scores.jsonl")}


def on_gpus(checkout: Path) -> list[tuple[str, float, float]]:
    """The GPU, begin and end of each job of the last run that had one."""
    found = []
    for path in (run_folder(checkout) / "slurm").glob("generate*.json"):
        report = json.loads(path.read_text())
        job = path.stem.partition("_")[2]
        [log] = (checkout / "log" / job).glob(f"quicktext_generate_{run_folder(checkout).name}.log")
        place = re.search(r"on (n\d), GPUs (\d)", log.read_text())
        assert place, log.read_text()
        found.append((f"{place[1]}/{place[2]}", report["began"], report["ended"]))
    return found


def test_a_matrix_is_scored_as_on_this_machine_and_no_gpu_has_two_jobs(checkout: Path) -> None:
    words = ["--model_names", ";".join(MODELS), "--ds_names", ";".join(BENCHMARKS), "--limit", "2"]
    run_eval(checkout, *words, "--launcher", "slurm", status=0)
    there = results(checkout)
    assert len(there) == len(MODELS) * len(BENCHMARKS)
    jobs = on_gpus(checkout)
    assert len(jobs) == len(MODELS)
    for (gpu, began, ended), (other, later, end) in combinations(sorted(jobs), 2):
        assert gpu != other or ended <= later or end <= began
    (checkout / "config.local.sh").write_text("")
    (checkout / "output").rename(checkout / "slurms")
    run_eval(checkout, *words, status=0)
    assert results(checkout) == there


def test_what_sbatch_refuses_is_one_line(checkout: Path) -> None:
    (checkout / "config.local.sh").write_text("declare -gA SLURM_PARTITION_MAP=(['*']='nowhere')\n")
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "2"]
    done = run_eval(checkout, *words, "--launcher", "slurm", status=1)
    assert "Invalid partition name specified" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_an_evaluation_starts_while_images_of_another_benchmark_are_made(
    checkout: Path, cluster: Cluster
) -> None:
    """They are on two nodes: the job that makes the images has the locks of both results at first.

    The environment of one is named, so that the two evaluations do not share a job.
    """
    words = [*add_slow_model(checkout)[:2], "--ds_names", ";".join(BENCHMARKS)]
    (checkout / "config.local.sh").write_text(
        "declare -gA SLURM_ARGS_MAP=(['generate']='--nodelist=n1' ['evaluate']='--nodelist=n2')\n"
        "declare -gA SLURM_ACCOUNT_MAP=(['*']='vision')\n"
        f"declare -gA EVAL_ENV_MAP=(['{BENCHMARKS[1]}']='{checkout}/.venv')\n"
    )
    run = start(checkout, *words)
    wait_for((checkout / "output/slow/quicktext/scores.jsonl").exists)
    assert cluster.jobs()["generate:slow"][1] == "RUNNING"
    assert set(cluster.ask("squeue", "--noheader", "--format=%a").split()) == {"vision"}
    hurry(checkout)
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 0, told
    assert set(states(checkout).values()) == {"complete"}


def test_a_run_goes_on_without_a_terminal_is_told_of_and_ended(checkout: Path) -> None:
    words = add_slow_model(checkout, gpus=0)
    done = run_eval(checkout, *words, "--detach")
    assert done.returncode == 0 and "the run continues in the background" in done.stdout, done.stderr
    wait_for(lambda: count(checkout, "slow") > 0)
    status = run_eval(checkout, "--status").stdout
    assert re.search(r"run log/runs/\S+, process \d+", status)
    assert re.search(r"running +generate slow/quicktext \d+/48", status), status
    assert "waiting    evaluate slow/quicktext" in status
    ended = run_eval(checkout, "--cancel")
    assert ended.returncode == 0 and "cancelled: run " in ended.stdout
    wait_for(lambda: (run_folder(checkout) / "summary.json").exists())
    assert states(checkout) == {"slow/quicktext": "interrupted"}
    assert run_eval(checkout, "--status").stdout == "no run is under way\n"
    assert "stopped by SIGTERM" in (run_folder(checkout) / "launcher.log").read_text()


def test_a_run_that_another_machine_watches_is_told_of_and_ended(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    (checkout / "config.local.sh").write_text("SLURM_MAX_JOBS=1\n")
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0)
    launcher = run_folder(checkout) / "launcher.json"
    launcher.write_text(json.dumps(json.loads(launcher.read_text()) | {"host": "login2"}))
    told = run_eval(checkout, "--status").stdout
    assert re.match(r"run log/runs/\S+, watched from login2, 1 job in Slurm's queue\n", told)
    ended = run_eval(checkout, "--cancel")
    assert ended.returncode == 0 and "cancelled: run " in ended.stdout, ended.stderr
    told, _ = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 143 and "stopped by SIGTERM" in told
    assert states(checkout) == {"slow/quicktext": "interrupted"}
    assert not list((run_folder(checkout) / "slurm").glob("evaluate*.log")), (
        "it was held back, and is so for good"
    )
    wait_for(lambda: not cluster.jobs())
