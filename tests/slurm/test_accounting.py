"""``--launcher slurm`` where a database says who may submit what: slurmdbd, and MariaDB below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, lacking
from tests.slurm.runs import add_slow_model, count, hurry, start, states
from tests.support.checkout import needs_driver_env, run_eval
from tests.support.waiting import LONGEST_WAIT, wait_for

WHY_NOT = lacking(accounting=True)
pytestmark = [
    needs_driver_env,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "a cluster with accounting"),
]


@pytest.fixture(scope="module")
def cluster(folder_of_cluster: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder_of_cluster, nodes=1, accounting=True)
    yield cluster
    cluster.stop()


def test_jobs_are_of_the_account_and_qos_of_their_stage(checkout: Path, cluster: Cluster) -> None:
    words = add_slow_model(checkout)
    (checkout / "config.local.sh").write_text(
        "declare -gA SLURM_ACCOUNT_MAP=(['*']='vision')\ndeclare -gA SLURM_QOS_MAP=(['generate']='long')\n"
    )
    run = start(checkout, *words)
    wait_for(lambda: count(checkout, "slow") > 0)
    status = run_eval(checkout, "--status").stdout
    assert "3 jobs in Slurm's queue" in status and "running    generate slow/quicktext" in status, status
    hurry(checkout)
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 0, told
    assert states(checkout) == {"slow/quicktext": "complete"}
    asked = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobName,Account,QOS,State")
    expected = {
        "generate:slow|vision|long|COMPLETED",
        "evaluate:slow/quicktext|vision|normal|COMPLETED",
        "report|vision|normal|COMPLETED",
    }
    wait_for(lambda: set(cluster.ask(*asked).splitlines()) == expected)
