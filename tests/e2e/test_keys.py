"""Which process of a run has which keys: each the ones it needs, seen from inside by real runs of eval.sh."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import (
    add_benchmark,
    add_model,
    find_no_text,
    make_checkout,
    needs_driver_env,
    run_eval,
)
from tests.support.fake_vllm import install
from tests.support.judge_server import JudgeServer
from tests.support.served_benchmark import add_served_benchmark

PREFIX = "sk-nobody-else-"
SECRETS = {
    name: f"{PREFIX}{name}"
    for name in (
        "API_KEY",
        "OTHER_API_KEY",
        "VLLM_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "CI_JOB_TOKEN",
    )
}

# Python runs it first in every process, and no job knows of it.
PROBE = f"""
import json, os, sys
names = sorted(name for name, value in os.environ.items() if value.startswith({PREFIX!r}))
with open(os.environ["SEEN_FILE"], "a") as file:
    file.write(json.dumps([sys.orig_argv[1:], names]) + "\\n")
"""

PEEKING = f"""
import json, os
from PIL import Image


class Peeking:
    def __init__(self, model_path, name, api_key_env=""):
        self.model_name = name
        self.names = sorted(n for n, value in os.environ.items() if value.startswith({PREFIX!r}))

    def generate(self, prompt, seed=42):
        with open(os.environ["SEEN_FILE"], "a") as file:
            file.write(json.dumps([["class", self.model_name], self.names]) + "\\n")
        return Image.new("RGB", (32, 32), "red")
"""

SCRIPT = f"""
for name in $(compgen -e); do
  if [[ ${{!name}} == {PREFIX}* ]]; then seen+="$name "; fi
done
printf '[["script"], "%s"]\\n' "$seen" >>"$SEEN_FILE"
"""


class Run:
    """Runs in a checkout where every Python process leaves the names of the keys that it has."""

    def __init__(self, folder: Path) -> None:
        self.checkout = find_no_text(make_checkout(folder / "checkout"))
        self.folder, self.file = folder, folder / "seen.jsonl"
        (folder / "probe").mkdir()
        (folder / "probe" / "sitecustomize.py").write_text(PROBE)

    def __call__(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        self.file.unlink(missing_ok=True)
        path = f"{self.folder / 'probe'}{os.pathsep}{self.checkout}"
        environ = {**SECRETS, "CUDA_VISIBLE_DEVICES": "", "SEEN_FILE": str(self.file), "PYTHONPATH": path}
        return run_eval(self.checkout, *words, "--limit", "1", **environ, **env)

    def keys(self, *words: str) -> set[str]:
        """The keys of the processes whose command has all of ``words``, which there must be."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        found = [set(names) for command, names in lines if all(word in command for word in words)]
        assert found, words
        assert found.count(found[0]) == len(found), words
        return found[0]

    def add(self, name: str, kwargs: Mapping[str, str] | None = None, **entry: Any) -> None:
        add_model(
            self.checkout, name, "Peeking", PEEKING, model_kwargs={"name": name, **(kwargs or {})}, **entry
        )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@needs_driver_env
def test_a_local_model_has_the_key_that_it_names_and_the_hub_s_where_it_may_fetch_weights(run: Run) -> None:
    code = run.checkout / "infer/custom_models/code/authors"
    code.mkdir(parents=True)
    (code / "net.py").write_text("class Net: ...\n")
    asset = {
        "code": "owner/name",
        "commit": "0" * 40,
        "tree": "51c4baed3f635f0477cae42356ee9cb527112411",
        "to": "authors",
        "licence": "MIT",
    }
    run.add("plain")
    run.add("of-the-hub", model_path="owner/weights")
    run.add("of-authors", model_path="owner/weights", assets=[asset])
    run.add("asking", kwargs={"api_key_env": "OTHER_API_KEY"})
    models = "plain;of-the-hub;of-authors;asking"
    done = run("--model_names", models, "--ds_names", "quicktext")
    assert done.returncode == 0, done.stdout + done.stderr
    expected: dict[str, set[str]] = {
        "plain": set(),
        "of-the-hub": {"HF_TOKEN"},
        "of-authors": set(),
        "asking": {"OTHER_API_KEY"},
    }
    for model, keys in expected.items():
        assert run.keys("--job", f"generate:{model}") == keys, model
        assert run.keys("class", model) == keys, "as the worker that has loaded it"
    assert run.keys("imageevalkit.evaluate") == set()
    assert run.keys("imageevalkit.report") == set()
    assert run.keys("imageevalkit.cli") == set(SECRETS), "the launcher hands them on"

    done = run("--model_names", models, "--ds_names", "quicktext", "--dry_run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.keys("imageevalkit.extras.dry_run.questions") == set()


@needs_driver_env
def test_where_nothing_may_be_fetched_no_model_has_the_hub_s_token(run: Run) -> None:
    cached = run.folder / "hf/hub/models--owner--weights/snapshots" / ("1" * 40)
    cached.mkdir(parents=True)
    (cached / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (cached.parents[1] / "refs").mkdir()
    (cached.parents[1] / "refs/main").write_text("1" * 40)
    run.add("of-the-hub", model_path="owner/weights")
    done = run(
        *["--model_names", "of-the-hub", "--ds_names", "quicktext", "--eval", "false"],
        HF_HUB_OFFLINE="1",
        HF_HOME=str(run.folder / "hf"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.keys("class", "of-the-hub") == set()


@needs_driver_env
def test_models_behind_an_api_have_the_keys_of_their_endpoints(run: Run) -> None:
    run.add("ours", api=True)
    run.add("theirs", api=True, kwargs={"api_key_env": "OTHER_API_KEY"})
    for models, keys in (("ours", {"API_KEY"}), ("theirs", {"OTHER_API_KEY"}), ("ours;theirs", None)):
        done = run(
            *["--model_names", models, "--ds_names", "quicktext", "--use_api", "true", "--overwrite"],
            *["--eval", "false"],
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert run.keys("infer/generate.py") == (keys or {"API_KEY", "OTHER_API_KEY"})
        (run.checkout / "output").rename(run.folder / f"output of {models}")


@needs_driver_env
def test_an_evaluation_has_the_key_of_its_judge_while_it_asks(run: Run) -> None:
    add_served_benchmark(run.checkout, "asked")
    words = ["--model_names", "reference-noise", "--ds_names", "asked", "--judges", "asked=openai:org/judge"]
    with JudgeServer() as server:
        for name in ("API_KEY", "OTHER_API_KEY"):
            kwargs = f"base_url={server.base_url},api_key_env={name},max_attempts=1,backoff=0.01"
            run(*words, "--judge_kwargs", kwargs, "--dry_run")
            assert run.keys("imageevalkit.extras.dry_run.questions") == {name}
            run(*words, "--judge_kwargs", kwargs)
            assert run.keys("imageevalkit.evaluate") == {name}
        run(*words, "--judge_kwargs", kwargs, "--rescore")
        assert run.keys("imageevalkit.evaluate") == set()


@needs_driver_env
@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_judge_s_server_has_no_key_but_the_hub_s_and_those_who_ask_it_none(run: Run, offline: str) -> None:
    install(run.folder / "conda/envs/vllm")
    add_served_benchmark(run.checkout, "asked")
    weights = run.folder / "judge"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    judge = "vllm:org/judge" if offline == "0" else f"vllm:{weights}"
    done = run(
        *["--model_names", "reference-noise", "--ds_names", "asked", "--judges", f"asked={judge}"],
        CONDA_BASE=str(run.folder / "conda"),
        HF_HUB_OFFLINE=offline,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hub = {"HF_TOKEN"} if offline == "0" else set()
    assert run.keys("serve") == run.keys("imageevalkit.extras.serve.judge_server") == hub
    assert run.keys("imageevalkit.evaluate") == set()


@needs_driver_env
def test_a_script_of_the_user_s_own_has_the_user_s_environment(run: Run) -> None:
    add_benchmark(run.checkout, "own", "Own", OWN)
    (run.checkout / "eval/own.sh").write_text(SCRIPT)
    done = run("--model_names", "reference-noise", "--ds_names", "own")
    assert done.returncode == 0, done.stdout + done.stderr
    (seen,) = [line for line in map(json.loads, run.file.read_text().splitlines()) if line[0] == ["script"]]
    assert set(seen[1].split()) == set(SECRETS)


OWN = """
class Own:
    def __init__(self):
        self.dataset_name = "own"
        self.dataset_task = "t2i"
        self.data = [{"prompt": "a cat", "seed": 0, "image_save_path": "<MODEL_NAME>/own/images/0.png"}]
"""

NOTE = "holds a key, and other users may read it: chmod 600 "


@pytest.mark.parametrize(
    ("mode", "text", "told"),
    [
        (0o644, "API_KEY=sk-something\n", True),
        (0o640, "export OTHER_API_KEY='sk-something'\n", True),
        (0o604, "NUM_WORKERS=2; HF_TOKEN=hf_something\n", True),
        (0o644, "# \udce4\nAPI_KEY=sk-something\n", True),
        (0o600, "API_KEY=sk-something\n", False),
        (0o644, "API_KEY=EMPTY\nNUM_WORKERS=2\nBASE_URL=http://gpu1:8000/v1\n", False),
        (0o644, 'API_KEY=$(printf %s sk-else)\nOTHER_API_KEY="${A_KEY_OF_MINE}"\n', False),
        (0o644, "# API_KEY=sk-something\n", False),
        (0o644, "JUDGE_KWARGS_MAP=(['qwen3-vl-8b']='api_key_env=JUDGE_API_KEY')\n", False),
    ],
)
def test_a_key_that_others_may_read_is_told(tmp_path: Path, mode: int, text: str, told: bool) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    local = checkout / "config.local.sh"
    local.write_bytes(text.encode(errors="surrogateescape"))
    local.chmod(mode)
    run = run_eval(checkout, "--list")
    assert run.returncode == 0, run.stderr
    assert run.stderr == (f"note: {local} {NOTE}{local}\n" if told else "")


@needs_driver_env
def test_it_is_told_once_in_a_run_of_many_jobs(tmp_path: Path) -> None:
    checkout = find_no_text(make_checkout(tmp_path / "checkout"))
    (checkout / "config.local.sh").write_text("API_KEY=sk-something\n")
    (checkout / "config.local.sh").chmod(0o644)
    words = ["--model_names", "reference-noise;reference-blank", "--ds_names", "quicktext", "--limit", "1"]
    run = run_eval(checkout, *words)
    assert run.returncode == 0, run.stdout + run.stderr
    assert (run.stdout + run.stderr).count(NOTE) == 1
    assert not [log for log in (checkout / "log").rglob("*.log") if NOTE in log.read_text()]
