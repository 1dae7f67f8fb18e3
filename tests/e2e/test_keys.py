"""Which process of a run has which keys: each the ones it needs, seen from inside by real runs of eval.sh."""

from __future__ import annotations

import json
import os
import shutil
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

pytestmark = needs_driver_env

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

    def __call__(
        self, *words: str, status: int | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """A run in an output folder without results."""
        self.file.unlink(missing_ok=True)
        shutil.rmtree(self.checkout / "output", ignore_errors=True)
        path = f"{self.folder / 'probe'}{os.pathsep}{self.checkout}"
        environ = {**SECRETS, "CUDA_VISIBLE_DEVICES": "", "SEEN_FILE": str(self.file), "PYTHONPATH": path}
        return run_eval(self.checkout, *words, "--limit", "1", status=status, **environ, **env)

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


OWN = """
class Own:
    def __init__(self):
        self.dataset_name = "own"
        self.dataset_task = "t2i"
        self.data = [{"prompt": "a cat", "seed": 0, "image_save_path": "<MODEL_NAME>/own/images/0.png"}]
"""
NOTE = "holds a key, and other users may read it: chmod 600 "


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("keys"))
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
    add_benchmark(run.checkout, "own", "Own", OWN)
    (run.checkout / "eval/own.sh").write_text(SCRIPT)
    add_served_benchmark(run.checkout, "asked")
    return run


def test_a_local_model_has_the_key_that_it_names_and_the_hub_s_where_it_may_fetch_weights(run: Run) -> None:
    local = run.checkout / "config.local.sh"
    local.write_text("API_KEY=sk-something\n")
    local.chmod(0o644)
    models = "plain;of-the-hub;of-authors;asking"
    done = run("--model_names", models, "--ds_names", "quicktext;own")
    local.unlink()
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
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
    # a script of the user's own has the user's environment
    seen = [names for who, names in map(json.loads, run.file.read_text().splitlines()) if who == ["script"]]
    assert len(seen) == 4 and {*map(frozenset, map(str.split, seen))} == {frozenset(SECRETS)}
    # the launcher alone prints the note on a readable file, once
    assert said.count(NOTE) == 1
    assert not [log for log in (run.checkout / "log").rglob("*.log") if NOTE in log.read_text()]


def test_an_evaluation_has_the_key_of_its_judge_while_it_asks(run: Run) -> None:
    words = ["--model_names", "reference-noise", "--ds_names", "asked", "--judges", "asked=openai:org/judge"]
    with JudgeServer() as server:
        kwargs = f"base_url={server.base_url},api_key_env=OTHER_API_KEY,max_attempts=1,backoff=0.01"
        words += ["--judge_kwargs", kwargs]
        run(*words)
    assert run.keys("imageevalkit.evaluate") == {"OTHER_API_KEY"}


def test_a_judge_s_server_has_no_key_but_the_hub_s_and_those_who_ask_it_none(run: Run) -> None:
    install(run.folder / "conda/envs/vllm")
    words = ["--model_names", "reference-noise", "--ds_names", "asked", "--judges", "asked=vllm:org/judge"]
    run(*words, CONDA_BASE=str(run.folder / "conda"), status=0)
    assert run.keys("serve") == run.keys("imageevalkit.extras.serve.judge_server") == {"HF_TOKEN"}
    assert run.keys("imageevalkit.evaluate") == set()
