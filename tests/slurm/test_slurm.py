"""``--launcher slurm`` on a real Slurm: two nodes of two fake GPUs each, on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster, lacking, wait_for
from tests.support.checkout import SLOW_NOISE, add_model, environ, make_checkout, needs_driver_env, run_eval

pytestmark = [needs_driver_env, pytest.mark.skipif(bool(lacking()), reason=lacking() or "a cluster")]

VARIANTS = """
from benchmarks.quicktext.benchmark import QuickText


class Other(QuickText):
    name = "quicktext-b"


class Third(QuickText):
    name = "quicktext-c"


class Fourth(QuickText):
    name = "quicktext-d"
"""
BENCHMARKS = ("quicktext", "quicktext-b", "quicktext-c", "quicktext-d")
MODELS = ("reference-typeset", "reference-noise", "reference-blank")
ON_GPUS = "declare -gA INFER_GPU_MAP=({})\n".format(" ".join(f"['{name}']=1" for name in MODELS))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    for above in folder.parents[:3]:
        above.chmod(above.stat().st_mode | 0o055)
    cluster = Cluster(folder)
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def of_this_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    yield
    cluster.empty()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With four benchmarks of text, and models that take a GPU each, whether they use it or not."""
    checkout = make_checkout(tmp_path / "kit")
    folder = checkout / "benchmarks" / "variants"
    folder.mkdir()
    (folder / "benchmark.py").write_text(VARIANTS)
    shutil.copy2(checkout / "benchmarks/quicktext/data/prompts.jsonl", folder)
    (checkout / "config.local.sh").write_text(ON_GPUS)
    return checkout


def results(checkout: Path) -> dict[str, bytes]:
    """The scores of every cell, as they are on the disk."""
    output = checkout / "output"
    return {str(path.relative_to(output)): path.read_bytes() for path in output.glob("*/*/scores.jsonl")}


def run_folder(checkout: Path) -> Path:
    """That of the last run."""
    return max((checkout / "log" / "runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)


def states(folder: Path) -> dict[str, str]:
    summary = json.loads((folder / "summary.json").read_text())
    return {cell["cell"]: cell["state"] for cell in summary["cells"]}


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
    done = run_eval(checkout, *words, "--launcher", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    there = results(checkout)
    assert len(there) == 12
    jobs = on_gpus(checkout)
    assert len(jobs) == 3
    for (gpu, began, ended), (other, later, end) in combinations(sorted(jobs), 2):
        assert gpu != other or ended <= later or end <= began
    assert not list((run_folder(checkout) / "slurm").glob("evaluate*skipped*"))
    (checkout / "config.local.sh").write_text("")
    (checkout / "output").rename(checkout / "slurms")
    done = run_eval(checkout, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(checkout) == there


def test_what_is_killed_and_requeued_goes_on_and_what_is_cancelled_is_told(
    checkout: Path, cluster: Cluster
) -> None:
    """A node dies, a job is put back into the queue, another is cancelled; a second run completes what is not."""
    names = ["slow-a", "slow-b", "slow-c"]
    for name in names:
        add_model(checkout, name, "SlowNoise", SLOW_NOISE, gpus=1)
    words = ["--model_names", ";".join(names), "--ds_names", "quicktext", "--launcher", "slurm"]
    words += ["--custom_model_kwargses", "seconds=0.4;seconds=0.4;seconds=0.4"]
    run = start(checkout, *words)
    try:
        wait_for(lambda: all(count(checkout, name) > 2 for name in names), 120)
        jobs = cluster.jobs()
        cluster.ask("scancel", jobs["generate:slow-c"][0])
        cluster.ask("scontrol", "requeue", jobs["generate:slow-a"][0])
        node = cluster.ask(
            "squeue", "--noheader", f"--jobs={jobs['generate:slow-b'][0]}", "--format=%N"
        ).strip()
        cluster.kill_node(node)
        told = run.communicate(timeout=240)
    finally:
        run.kill()
        if cluster.states()[node] != "idle":
            cluster.start_node(node)
    assert run.returncode == 1, told
    ended = states(run_folder(checkout))
    assert ended["slow-c/quicktext"] == "failed"
    assert "CANCELLED" in told[0]
    assert {ended[f"{name}/quicktext"] for name in names[:2]} == {"complete"}
    wait_for(lambda: set(cluster.states().values()) == {"idle"}, 120)
    made = {name: (checkout / "output" / name / "quicktext/generation.jsonl").read_text() for name in names}
    again = run_eval(checkout, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(states(run_folder(checkout)).values()) == {"complete"}
    for name in names:
        items = [record["item"] for record in records(checkout, name)]
        assert len(set(items)) == 48
        # of a job that was killed at most the image under way was made once more
        assert len(items) <= 48 + 2
        after = (checkout / "output" / name / "quicktext/generation.jsonl").read_text()
        assert after.startswith(made[name]), "nothing that was made is made again"


def test_a_job_in_the_queue_is_not_submitted_again(checkout: Path, cluster: Cluster) -> None:
    add_model(checkout, "slow", "SlowNoise", SLOW_NOISE, gpus=1)
    words = ["--model_names", "slow", "--ds_names", "quicktext", "--launcher", "slurm"]
    words += ["--custom_model_kwargses", "seconds=0.2"]
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0, 120)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert set(cluster.jobs()) >= {"generate:slow", "evaluate:slow/quicktext"}, (
        "they outlive who submitted them"
    )
    other = run_eval(checkout, *words, "--overwrite")
    assert other.returncode == 2
    assert "slow/quicktext is being worked on by Slurm job" in other.stderr
    again = run_eval(checkout, *words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stderr.count("it is not submitted again") == 2
    assert len(records(checkout, "slow")) == 48
    assert states(run_folder(checkout)) == {"slow/quicktext": "complete"}


def test_ctrl_c_leaves_nothing_in_the_queue(checkout: Path, cluster: Cluster) -> None:
    add_model(checkout, "slow", "SlowNoise", SLOW_NOISE, gpus=1)
    words = ["--model_names", "slow", "--ds_names", "quicktext", "--custom_model_kwargses", "seconds=1"]
    run = start(checkout, *words, "--launcher", "slurm")
    wait_for(lambda: count(checkout, "slow") > 0, 120)
    run.send_signal(signal.SIGINT)
    told = run.communicate(timeout=60)
    assert run.returncode == 130, told
    assert "stopped by SIGINT" in told[0]
    wait_for(lambda: not cluster.jobs(), 30)


def test_a_job_at_its_time_limit_goes_back_and_on(checkout: Path, cluster: Cluster) -> None:
    add_model(checkout, "slow", "SlowNoise", SLOW_NOISE, gpus=1)
    limits = "declare -gA SLURM_TIME_MAP=(['generate']='1')\nSLURM_GRACE=30\n"
    (checkout / "config.local.sh").write_text(limits)
    words = ["--model_names", "slow", "--ds_names", "quicktext", "--limit", "30"]
    words += ["--custom_model_kwargses", "seconds=1.5"]
    done = run_eval(checkout, *words, "--eval", "false", "--launcher", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted({record["item"] for record in records(checkout, "slow")}) == sorted(
        record["item"] for record in records(checkout, "slow")
    )
    log = (run_folder(checkout) / "slurm" / "generate_slow.log").read_text()
    assert "its time limit came: back in the queue" in log


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("declare -gA SLURM_PARTITION_MAP=(['*']='nowhere')", "Invalid partition name specified"),
        (
            "declare -gA SLURM_PARTITION_MAP=(['genrate']='debug')",
            "unknown key 'genrate' (did you mean 'generate'?)",
        ),
        ("SLURM_MAX_JOBS=many", "SLURM_MAX_JOBS in config.sh is 'many'"),
        ("declare -gA SLURM_ARGS_MAP=(['*']='--comment \"x')", "SLURM_ARGS_MAP in config.sh"),
        ("declare -gA INFER_GPU_MAP=(['reference-noise']=3)", "3 GPU(s), but a node has 2"),
    ],
)
def test_a_slip_is_one_line(checkout: Path, config: str, says: str) -> None:
    (checkout / "config.local.sh").write_text(config + "\n")
    words = [
        "--model_names",
        "reference-noise",
        "--ds_names",
        "quicktext",
        "--limit",
        "2",
        "--launcher",
        "slurm",
    ]
    done = run_eval(checkout, *words)
    assert done.returncode in (1, 2)
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_bounds_hold_jobs_back(checkout: Path, cluster: Cluster) -> None:
    (checkout / "config.local.sh").write_text(ON_GPUS + "SLURM_MAX_JOBS=1\n")
    words = ["--model_names", ";".join(MODELS[:2]), "--ds_names", "quicktext", "--limit", "2"]
    run = start(checkout, *words, "--launcher", "slurm")
    most = 0
    while run.poll() is None:
        most = max(most, len(cluster.jobs()))
        time.sleep(0.2)
    assert run.returncode == 0, run.communicate()
    assert most == 1


@pytest.mark.parametrize("launcher", ["slurm", "local"])
def test_a_run_goes_on_without_a_terminal_is_told_of_and_ended(
    checkout: Path, cluster: Cluster, launcher: str
) -> None:
    add_model(checkout, "slow", "SlowNoise", SLOW_NOISE)
    words = ["--model_names", "slow", "--ds_names", "quicktext", "--custom_model_kwargses", "seconds=1"]
    done = run_eval(checkout, *words, "--launcher", launcher, "--detach")
    assert done.returncode == 0 and "the run goes on in the background" in done.stdout, done.stderr
    wait_for(lambda: count(checkout, "slow") > 0, 120)
    status = run_eval(checkout, "--status").stdout
    assert re.search(
        r"run log/runs/\S+, process \d+" + ", 3 jobs in Slurm's queue" * (launcher == "slurm"), status
    )
    assert re.search(r"running +generate slow/quicktext \d+/48", status), status
    assert "waiting    evaluate slow/quicktext" in status
    ended = run_eval(checkout, "--cancel")
    assert ended.returncode == 0 and "cancelled: run " in ended.stdout
    wait_for(lambda: (run_folder(checkout) / "summary.json").exists(), 120)
    assert states(run_folder(checkout)) == {"slow/quicktext": "interrupted"}
    assert not cluster.jobs()
    assert run_eval(checkout, "--status").stdout == "no run is under way\n"
    assert "stopped by SIGTERM" in (run_folder(checkout) / "launcher.log").read_text()


def test_machines_share_the_images_of_a_model(checkout: Path, cluster: Cluster) -> None:
    """Two shards on two nodes; one is cancelled in the middle, and a second run makes what it lacks."""
    for name, gpus in (("slow", 1), ("alone", 0)):
        add_model(checkout, name, "SlowNoise", SLOW_NOISE, gpus=gpus)
    with (checkout / "config.local.sh").open("a") as config:
        config.write("declare -gA SHARDS_MAP=(['slow']=2)\n")
        config.write("declare -gA SLURM_ARGS_MAP=(['slow']='--exclusive')\n")
    words = ["--model_names", "slow", "--ds_names", ";".join(BENCHMARKS[:2]), "--limit", "20"]
    words += ["--launcher", "slurm", "--custom_model_kwargses"]
    plan = run_eval(checkout, *words, "seconds=0.4", "--dry_run").stdout
    assert "generate:slow 1/2: " in plan and "generate:slow 2/2: " in plan
    wait_for(lambda: set(cluster.states().values()) == {"idle"}, 60)
    run = start(checkout, *words, "seconds=0.4")
    shards = checkout / "output" / "slow" / "quicktext" / ".shards"
    files = [shards / f"{n}of2" / "generation.jsonl" for n in (1, 2)]
    wait_for(lambda: all(file.exists() and file.read_text().count("\n") > 1 for file in files), 120)
    jobs = cluster.jobs()
    nodes = cluster.ask("squeue", "--noheader", "--name=generate:slow 1/2,generate:slow 2/2", "--format=%N")
    assert sorted(nodes.split()) == ["n1", "n2"]
    cluster.ask("scancel", jobs["generate:slow 2/2"][0])
    told = run.communicate(timeout=240)
    assert run.returncode == 1 and "CANCELLED" in told[0], told
    assert set(states(run_folder(checkout)).values()) == {"failed"}
    again = run_eval(checkout, *words, "seconds=0.4")
    assert again.returncode == 0, again.stdout + again.stderr
    assert not shards.exists(), "who was last has gathered all records"
    items = [record["item"] for record in records(checkout, "slow")]
    assert len(set(items)) == 20 and len(items) <= 21
    words[1] = "alone"
    assert run_eval(checkout, *words[:-3], "--custom_model_kwargses", "seconds=0").returncode == 0
    scores = [
        (checkout / "output" / name / "quicktext" / "scores.jsonl").read_text() for name in ("slow", "alone")
    ]
    assert scores[0] == scores[1]


def start(checkout: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(checkout / "eval.sh"), *words],
        env=environ(checkout) | {"SLURM_CONF": os.environ["SLURM_CONF"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def records(checkout: Path, model: str) -> list[dict[str, Any]]:
    path = checkout / "output" / model / "quicktext" / "generation.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def count(checkout: Path, model: str) -> int:
    return len(records(checkout, model))
