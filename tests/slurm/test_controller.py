"""A controller of Slurm's that is away for a while."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import (
    add_slow_model,
    count,
    hurry,
    needs_cluster,
    processes,
    records,
    start,
    states,
)
from tests.support.checkout import run_eval
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_cluster


def test_a_controller_that_starts_again_fails_nothing(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    (checkout / "config.local.sh").write_text("SLURM_MAX_JOBS=1\n")
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0)
    wait_until_saved(cluster, "generate:slow")
    cluster.kill_controller()
    time.sleep(5)  # commands wait for it for less
    cluster.start_controller()
    wait_for(lambda: "generate:slow" in cluster.jobs())
    hurry(checkout)
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 0, told
    assert states(checkout) == {"slow/quicktext": "complete"}
    items = [record["item"] for record in records(checkout, "slow")]
    assert len(set(items)) == 48 and len(items) <= 49


def test_ctrl_c_while_the_controller_is_away(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    (checkout / "config.local.sh").write_text("SLURM_MAX_JOBS=1\n")
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0)
    wait_until_saved(cluster, "generate:slow")
    cluster.kill_controller()
    run.send_signal(signal.SIGINT)
    status = run_eval(checkout, "--status")
    assert status.returncode == 2 and "generate slow/quicktext" in status.stdout
    assert "the list lacks runs on the cluster: " in status.stderr
    cluster.start_controller()
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 130, told
    assert "stopped by SIGINT" in told[0]
    assert states(checkout) == {"slow/quicktext": "interrupted"}
    wait_for(lambda: not cluster.jobs() and not processes(checkout))


def wait_until_saved(cluster: Cluster, job: str) -> None:
    """Waits until the controller has saved ``job``.

    Otherwise a restarted controller would start the job a second time, and hold it for an administrator.
    """
    number, _ = cluster.jobs()[job]
    now = time.time()
    cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1000")
    # at the latest 5 s after a change
    wait_for(lambda: (cluster.folder / "state" / "job_state").stat().st_mtime > now)
