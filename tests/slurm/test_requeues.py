"""Jobs that Slurm takes the node away from, for their time limit or for another job."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import add_slow_model, count, hurry, log_of, needs_cluster, records, start
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
    run = start(checkout, "--model_names", ";".join(names), "--ds_names", "quicktext", "--eval", "false")
    wait_for(lambda: all(count(checkout, name) > 0 for name in names))
    number, _ = cluster.jobs()["generate:limited"]
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    # a job of higher priority wants all GPUs of the node for a moment
    words = ("--partition=high", "--nodelist=n2", "--gpus-per-node=2", "--output=/dev/null", "--wrap=sleep 1")
    cluster.ask("sbatch", *words)
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
