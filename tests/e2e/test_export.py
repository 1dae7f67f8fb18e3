"""``--launcher export``: the plan as scripts, which any engine may run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.support.checkout import REPO, make_checkout, needs_driver_env, run_command, run_eval
from tests.support.fake_kubernetes import fake_kubernetes

pytestmark = needs_driver_env
WORDS = ("--model_names", "reference-typeset;reference-noise", "--ds_names", "quicktext", "--limit", "2")


def exported(checkout: Path) -> list[dict[str, Any]]:
    done = run_eval(checkout, *WORDS, "--launcher", "export", status=0)
    assert "4 scripts and jobs.json in log/runs/" in done.stdout and "nothing was started" in done.stdout
    assert not (checkout / "output" / "reference-noise" / "quicktext" / "generation.jsonl").exists()
    [file] = (checkout / "log" / "runs").glob("*/export/jobs.json")
    return list(json.loads(file.read_text()))


def run_script(job: dict[str, Any]) -> int:
    # the engine's own environment: nothing of the user's
    return subprocess.run([job["script"]], env={"PATH": "/usr/bin:/bin"}, check=False).returncode


def test_scripts_in_the_order_of_their_levels_leave_what_a_run_leaves(checkout: Path) -> None:
    jobs = exported(checkout)
    assert [(job["name"], job["level"]) for job in jobs] == [
        ("generate:reference-typeset", 1),
        ("generate:reference-noise", 1),
        ("evaluate:reference-typeset/quicktext and 1 more", 2),
        ("report", 3),
    ]
    assert jobs[2]["after"] == ["generate:reference-typeset", "generate:reference-noise"]
    assert {job["gpus"] for job in jobs} == {0}
    # a job after one that has not succeeded is not run
    assert run_script(jobs[2]) == 1
    [told] = (Path(jobs[2]["script"]).parents[1] / "slurm").glob("evaluate_*.json")
    problem = json.loads(told.read_text())
    assert problem["skipped"] and "its generate stage failed" in problem["problem"]
    for level in (1, 2, 3):
        with ThreadPoolExecutor(2) as engine:
            assert set(engine.map(run_script, [job for job in jobs if job["level"] == level])) == {0}
    board = (checkout / "output" / "leaderboard.md").read_text()
    for model in ("reference-typeset", "reference-noise"):
        result = json.loads((checkout / "output" / model / "quicktext/result.json").read_text())
        assert result["state"] == "complete" and f"| {model} |" in board


def of_guide(language: str, has: str) -> str:
    """The one block of the guide to Kubernetes in this ``language`` that ``has`` these words."""
    guide = (REPO / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
    [block] = [
        block for block in re.findall(rf"```{language}[^\n]*\n(.*?)```", guide, re.DOTALL) if has in block
    ]
    return str(block)


def write_manifests(folder: Path) -> list[dict[str, Any]]:
    """The Jobs that the guide makes of three jobs on two levels, written into ``folder``."""
    common = {"after": [], "cpus": 8, "secrets": []}
    jobs = [
        {"name": "generate:a/b", "script": "/d/0001.sh", "level": 1, "gpus": 2, "light": False, **common},
        {"name": "generate:c", "script": "/d/0002.sh", "level": 1, "gpus": 0, "light": False, **common},
        {"name": "evaluate:a/b/wise", "script": "/d/0003.sh", "level": 2, "gpus": 0, "light": True, **common},
    ]
    jobs[2] |= {"after": ["generate:a/b"], "secrets": ["API_KEY"]}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    words = ["jobs.json", "image:1", "claim", "/d", "keys"]
    subprocess.run([sys.executable, "-c", of_guide("python", "manifest"), *words], cwd=folder, check=True)
    lists = [json.loads((folder / f"level-{level}.json").read_text()) for level in (1, 2)]
    return [item for each in lists for item in each["items"]]


def test_the_manifests_of_the_guide_are_those_that_kubernetes_takes(tmp_path: Path) -> None:
    """Against the schemas that Kubernetes publishes, unknown fields refused."""
    manifests = write_manifests(tmp_path)
    for manifest in manifests:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    first, second, third = (one["spec"]["template"]["spec"] for one in manifests)
    assert first["containers"][0]["resources"]["limits"] == {"memory": "128Gi", "nvidia.com/gpu": 2}
    assert first["tolerations"] and "nodeSelector" in first and "tolerations" not in second
    assert {"name": "shm", "mountPath": "/dev/shm"} in second["containers"][0]["volumeMounts"]
    assert third["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "API_KEY"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifests[0] | {"spec": {}}, kubernetes_validate.latest_version())


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl")
def test_a_level_of_the_guide_begins_when_the_level_before_has_ended(tmp_path: Path) -> None:
    """The real kubectl, before a fake of the API; one job fails, and one completes."""
    write_manifests(tmp_path)
    script, kubeconfig = of_guide("bash", "kubectl wait"), tmp_path / "kubeconfig"
    with fake_kubernetes(kubeconfig, {"generate:a/b": "Failed"}) as cluster:
        environ = os.environ | {"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
        run_command(["bash", "-c", script], cwd=tmp_path, env=environ, status=0)
        ended = {"generate:c": "Complete", "generate:a/b": "Failed"}
        assert cluster.begun["evaluate:a/b/wise"] == ended
        assert len(cluster.begun) == 3


def test_no_key_is_in_a_script(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "kit")
    words = ("--model_names", "some-model", "--ds_names", "quicktext", "--use_api", "true")
    run_eval(
        checkout,
        *words,
        "--launcher",
        "export",
        API_KEY="sk-of-a-test-1234567890",
        BASE_URL="http://127.0.0.1:9/v1",
        status=0,
    )
    [file] = (checkout / "log" / "runs").glob("*/export/jobs.json")
    generate = json.loads(file.read_text())[0]
    assert (generate["secrets"], generate["light"]) == (["API_KEY"], True)
    script = Path(generate["script"]).read_text()
    assert (
        "# needs API_KEY in its environment" in script and "export BASE_URL=http://127.0.0.1:9/v1" in script
    )
    assert not [p for p in file.parents[1].rglob("*") if p.is_file() and b"sk-of-a-test" in p.read_bytes()]
