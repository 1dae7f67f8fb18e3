"""Jobs that Slurm takes the node away from, for their time limit or for another job."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import add_slow_model, count, hurry, log_of, needs_cluster, records, start, states
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_cluster


def test_jobs_at_their_time_limit_and_preempted_ones_go_back_and_on(checkout: Path, cluster: Cluster) -> None:
    """Slurm tells of the limit before it; of the other job at the end of the grace time, by SIGTERM."""
    names = ["limited", "preempted"]
    for name in names:
        add_slow_model(checkout, name)
    (checkout / "config.local.sh").write_text(
        # Slurm looks at limits every 30 s, and tells of one up to 30 s too early
        "SLURM_GRACE=59\n"
        "declare -gA SLURM_PARTITION_MAP=(['preempted']='low')\n"
        "declare -gA SLURM_ARGS_MAP=(['limited']='--nodelist=n1' ['preempted']='--nodelist=n2')\n"
    )
    words = ["--model_names", ";".join(names), "--ds_names", "quicktext", "--eval", "false"]
    run = start(checkout, *words)
    wait_for(lambda: all(count(checkout, name) > 0 for name in names))
    number, _ = cluster.jobs()["generate:limited"]
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    preempt(cluster, "--nodelist=n2")
    wait_for(lambda: cluster.jobs()["generate:limited"][1] == "PENDING")
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED")
    wait_for(lambda: "DUE TO PREEMPTION" in log_of(checkout, "generate_preempted"))
    hurry(checkout, *names)
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 0, told
    made = {name: [record["item"] for record in records(checkout, name)] for name in names}
    assert len(made["limited"]) == len(set(made["limited"])) == 48
    assert "its time limit came: back in the queue" in log_of(checkout, "generate_limited")
    # the image that is under way when SIGTERM comes is made again
    assert len(set(made["preempted"])) == 48 and len(made["preempted"]) <= 49


def test_a_preempted_job_that_is_told_at_once_puts_itself_back(checkout: Path, cluster: Cluster) -> None:
    """A preempted job without progress does not count as too slow for its time limit."""
    words = add_slow_model(checkout)
    with cluster.setting("SlurmctldParameters", "preempt_send_user_signal"):
        (checkout / "config.local.sh").write_text("declare -gA SLURM_PARTITION_MAP=(['generate']='low')\n")
        run = start(checkout, *words)
        log = checkout / "log" / "slow"
        wait_for(log.exists)
        preempt(cluster, "--nodes=2")
        printed = "another job takes its place: back in the queue"
        wait_for(lambda: printed in log_of(checkout, "generate_slow"))
        hurry(checkout)
        told = run.communicate(timeout=LONGEST_WAIT)
        assert run.returncode == 0, told
    assert states(checkout) == {"slow/quicktext": "complete"}
    items = [record["item"] for record in records(checkout, "slow")]
    assert len(set(items)) == 48 and len(items) <= 49
    assert "DUE TO PREEMPTION" not in log_of(checkout, "generate_slow")


def preempt(cluster: Cluster, nodes: str) -> None:
    """A job of higher priority wants all GPUs of ``nodes`` for a moment."""
    words = ("--partition=high", nodes, "--gpus-per-node=2", "--output=/dev/null", "--wrap=sleep 1")
    cluster.ask("sbatch", *words)
