"""Jobs, nodes and launchers that end early, on a real Slurm: what goes on, and what is told."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import (
    add_slow_model,
    count,
    hurry,
    log_of,
    needs_cluster,
    records,
    run_folder,
    start,
    states,
)
from tests.support.checkout import add_model, run_eval
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_cluster


def test_what_is_killed_and_requeued_goes_on_and_what_is_cancelled_is_told(
    checkout: Path, cluster: Cluster
) -> None:
    """A node is lost while the processes of its jobs live on, a job is put back into the queue, another is cancelled; a
    second run completes what is not."""
    names = ["slow-a", "slow-b", "slow-c"]
    for name in names:
        # what is on the node outlasts that Slurm finds it dead, and starts it elsewhere
        add_slow_model(checkout, name, seconds=3 if name == "slow-b" else 1)
    words = ["--model_names", ";".join(names), "--ds_names", "quicktext"]
    run = start(checkout, *words)
    try:
        wait_for(lambda: all(count(checkout, name) > 1 for name in names))
        jobs = cluster.jobs()
        cluster.ask("scancel", jobs["generate:slow-c"][0])
        cluster.ask("scontrol", "requeue", jobs["generate:slow-a"][0])
        node = cluster.ask(
            "squeue", "--noheader", f"--jobs={jobs['generate:slow-b'][0]}", "--format=%N"
        ).strip()
        cluster.kill_node(node)
        # that of the first leaves its GPU to the second: where both were on that node, Slurm 22.05 miscounts them
        hurry(checkout, "slow-a", "slow-c")
        wait_for(lambda: "another machine has this job now" in log_of(checkout, "generate_slow-b"))
        hurry(checkout, "slow-b")
        told = run.communicate(timeout=LONGEST_WAIT)
    finally:
        run.kill()
        if cluster.states()[node] != "idle":
            cluster.start_node(node)
    assert run.returncode == 1, told
    ended = states(checkout)
    assert ended["slow-c/quicktext"] == "failed"
    assert "CANCELLED" in told[0]
    assert {ended[f"{name}/quicktext"] for name in names[:2]} == {"complete"}
    wait_for(lambda: set(cluster.states().values()) == {"idle"})
    made = {name: (checkout / "output" / name / "quicktext/generation.jsonl").read_text() for name in names}
    run_eval(checkout, *words, "--launcher", "slurm", status=0)
    assert set(states(checkout).values()) == {"complete"}
    for name in names:
        items = [record["item"] for record in records(checkout, name)]
        assert len(set(items)) == 48
        # of a job that was killed at most the image under way was made once more
        assert len(items) <= 48 + 2
        after = (checkout / "output" / name / "quicktext/generation.jsonl").read_text()
        assert after.startswith(made[name]), "nothing that was made is made again"


def test_a_job_in_the_queue_is_not_submitted_again(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0)
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert set(cluster.jobs()) >= {"generate:slow", "evaluate:slow/quicktext"}, (
        "they outlive who submitted them"
    )
    other = run_eval(checkout, *words, "--launcher", "slurm", "--overwrite", status=2)
    assert "slow/quicktext is being worked on by Slurm job" in other.stderr
    again = start(checkout, *words)
    assert again.stderr is not None
    told: list[str] = []
    # the jobs end only after the launcher has found both
    while "".join(told).count("it is not submitted again") < 2 and (line := again.stderr.readline()):
        told.append(line)
    hurry(checkout)
    again.communicate(timeout=LONGEST_WAIT)
    assert again.returncode == 0, told
    assert "".join(told).count("it is not submitted again") == 2
    assert len(records(checkout, "slow")) == 48
    assert states(checkout) == {"slow/quicktext": "complete"}


_NOT_ON_N1 = """
import os

from PIL import Image


class NotOnN1:
    def __init__(self, model_path):
        if os.environ["SLURMD_NODENAME"] == "n1":
            raise RuntimeError("CUDA error: no device")
        self.model_name = "{name}"

    def generate(self, prompt, seed=42):
        return Image.new("RGB", (48, 48), "red")
"""


def test_what_a_bad_node_fails_is_done_on_another_one(checkout: Path, cluster: Cluster) -> None:
    names = ["some", "other", "third"]
    for name in names:
        add_model(checkout, name, "NotOnN1", _NOT_ON_N1.format(name=name), gpus=1)
    words = ["--model_names", ";".join(names), "--ds_names", "quicktext", "--limit", "2"]
    done = run_eval(checkout, *words, "--launcher", "slurm", status=0)
    assert set(states(checkout).values()) == {"complete"}
    assert re.search(r"generate:\w+ on node n1, job \d+ \(model does not load: .*no device\)", done.stderr)
    assert "that another node completed: have it checked" in done.stderr


def test_jobs_go_on_when_a_signal_ends_their_detached_launcher(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    run_eval(checkout, *words, "--launcher", "slurm", "--detach", status=0)
    wait_for(lambda: count(checkout, "slow") > 0)
    folder = run_folder(checkout)
    launcher = json.loads((folder / "launcher.json").read_text())["pid"]
    os.kill(launcher, signal.SIGTERM)
    log = folder / "launcher.log"
    wait_for(lambda: "SIGTERM: this launcher ends, and 3 jobs continue in Slurm's queue" in log.read_text())
    assert len(cluster.jobs()) == 3
    hurry(checkout)
    wait_for(lambda: not cluster.jobs())
    assert "slow" in (checkout / "output" / "leaderboard.md").read_text()
