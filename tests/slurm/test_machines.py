"""Several machines make the images of a model."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.runs import BENCHMARKS, add_slow_model, hurry, needs_cluster, records, start, states
from tests.support.checkout import run_eval
from tests.support.waiting import LONGEST_WAIT, wait_for

pytestmark = needs_cluster


def test_machines_share_the_images_of_a_model(checkout: Path, cluster: Cluster) -> None:
    """Two shards on two nodes; one is cancelled in the middle, and a second run makes what it lacks."""
    add_slow_model(checkout)
    with (checkout / "config.local.sh").open("a") as config:
        config.write("declare -gA SHARDS_MAP=(['slow']=2)\n")
        config.write("declare -gA SLURM_ARGS_MAP=(['slow']='--exclusive')\n")
    words = ["--model_names", "slow", "--ds_names", ";".join(BENCHMARKS), "--limit", "16"]
    run = start(checkout, *words)
    shards = checkout / "output" / "slow" / "quicktext" / ".shards"
    files = [shards / f"{n}of2" / "generation.jsonl" for n in (1, 2)]
    wait_for(lambda: all(file.exists() and file.read_text().count("\n") > 1 for file in files))
    jobs = cluster.jobs()
    nodes = cluster.ask("squeue", "--noheader", "--name=generate:slow 1/2,generate:slow 2/2", "--format=%N")
    assert sorted(nodes.split()) == ["n1", "n2"]
    cluster.ask("scancel", jobs["generate:slow 2/2"][0])
    hurry(checkout)
    told = run.communicate(timeout=LONGEST_WAIT)
    assert run.returncode == 1 and "CANCELLED" in told[0], told
    assert set(states(checkout).values()) == {"failed"}
    run_eval(checkout, *words, "--launcher", "slurm", status=0)
    assert not shards.exists(), "who was last has gathered all records"
    items = [record["item"] for record in records(checkout, "slow")]
    assert len(set(items)) == 16 and len(items) <= 17
