"""``utils/prefetch.sh`` with the options of a run: which assets models and evaluators need, and one message on all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from imageevalkit.plan.models import missing_of_model
from imageevalkit.plan.options import TABLE
from imageevalkit.store.cell import REPO
from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.support.tree import copy_tree, lend_driver_environment, one_error, run

FILES = {
    "model_index.json": b'{"unet": ["diffusers", "U"]}',
    "unet/weights.safetensors": b"w" * 5000,
    "readme.md": b"not wanted",
}
CODE = "print('hello')\n"
# git's hash of a folder with CODE as run.py
TREE = "aaa6413d01d8b639c0b9db5ef1088373062a112f"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = copy_tree(tmp_path)
    lend_driver_environment(root)
    (root / "benchmarks").mkdir()
    return root


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server(FILES) as server:
        yield server


def register(root: Path, name: str, task: str = "t2i", **entry: Any) -> None:
    registry = root / "infer/custom_models/load_model.py"
    setting = {"module": ".model_utils.x", "class": "X", "model_path": "", **entry}
    registry.write_text(f"{registry.read_text()}\nMODEL_SETTINGS[{task!r}][{name!r}] = {setting!r}\n")


def prefetch(root: Path, *options: str | Path, **environ: str) -> CompletedProcess[str]:
    environ = {"HF_HOME": str(root / "home"), **environ}
    return run("bash", root / "utils/prefetch.sh", *options, environ=environ)


def cached(root: Path, name: str = "tiny") -> set[str]:
    folder = root / "home/hub" / f"models--org--{name}" / "snapshots" / COMMIT
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_weights_of_all_tasks_are_fetched_once_then_checked_without_a_hub(root: Path, hub: HubServer) -> None:
    weights: dict[str, Any] = {
        "model_path": "org/tiny",
        "model_kwargs": {"revision": COMMIT},
        "patterns": ["*.json", "*.safetensors"],
    }
    register(root, "tiny", **weights)
    register(root, "tiny", "edit", **weights, assets=[{"hub": "org/adapter", "patterns": ["*.md"]}])
    before = prefetch(root, "--check", "--model_names", "tiny")
    assert before.returncode == 1 and "2 assets are missing or wrong" in before.stderr
    assert "org/tiny at 0123456 is not in the cache" in before.stderr
    assert "org/adapter is not in the cache" in before.stderr

    fetched = prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url)
    assert fetched.returncode == 0, fetched.stderr
    assert cached(root) == {"model_index.json", "unet/weights.safetensors"}
    assert cached(root, "adapter") == {"readme.md"}
    assert "[1/2] org/tiny at 0123456 for model tiny: all right" in fetched.stdout
    assert f"note: org/adapter: main is commit {COMMIT}" in fetched.stdout
    assert len(hub.downloads()) == 3

    # on the node: no hub, and nobody may look for one
    check = ["--check", "--hashes", "--model_names", "tiny"]
    assert prefetch(root, *check, HF_HUB_OFFLINE="1").returncode == 0
    blob = root / "home/hub/models--org--tiny/snapshots" / COMMIT / "unet/weights.safetensors"
    blob.resolve().write_bytes(b"v" * 5000)
    assert prefetch(root, *check[:1], *check[2:]).returncode == 0
    altered = prefetch(root, *check)
    assert altered.returncode == 1 and "unet/weights.safetensors has other content" in altered.stderr


def test_another_model_path_has_no_pin_and_no_patterns(root: Path, hub: HubServer) -> None:
    register(root, "tiny", model_path="org/tiny", model_kwargs={"revision": "f" * 40}, patterns=["*.json"])
    options = ["--model_names", "tiny;reference-noise", "--custom_model_kwargses", "model_path=org/mine;"]
    result = prefetch(root, *options, HF_ENDPOINT=hub.url)
    assert result.returncode == 0, result.stderr
    assert cached(root, "mine") == set(FILES)
    assert "model reference-noise: needs no files" in result.stdout
    unknown = prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url)
    assert "the hub has no revision 'ffff" in unknown.stderr
    elsewhere = prefetch(
        root, "--model_names", "diffusers", "--custom_model_kwargses", "model_path=/no/where"
    )
    assert "there is no /no/where" in elsewhere.stderr
    assert prefetch(
        root, "--model_names", "diffusers", "--custom_model_kwargses", f"model_path={root}"
    ).stdout.startswith("[1/1]")


def test_weights_of_the_tasks_of_the_benchmarks(root: Path) -> None:
    register(root, "two", model_path="org/t2i")
    register(root, "two", "edit", model_path="org/edit")
    (root / "benchmarks/longtext").mkdir()
    for source in (REPO / "benchmarks/longtext").glob("[a-z]*.*"):
        shutil.copy(source, root / "benchmarks/longtext")
    check = ["--check", "--model_names", "two"]
    everything = prefetch(root, *check).stderr
    assert "org/t2i is not" in everything and "org/edit is not" in everything
    of_benchmark = prefetch(root, *check, "--ds_names", "longtext", "--judges", "longtext=ppocr").stderr
    assert "org/t2i is not" in of_benchmark and "org/edit is not" not in of_benchmark
    (root / "config.local.sh").write_text("MODEL_NAMES=('two')\nDS_NAMES=('longtext')\n")
    assert "org/edit" not in prefetch(root, "--check").stderr


def test_every_option_of_a_run_is_taken(root: Path) -> None:
    words = [
        *(
            "--parallel",
            "true",
            "--limit",
            "4",
            "--replicas=2",
            "--launcher",
            "slurm",
            "--num_workers",
            "8",
            "--requests_per_minute",
            "9",
        ),
        *("--max_cost", "1", "--missing_items", "official", "--overwrite", "--retry_refused", "true"),
        *(
            "--batch",
            "--retry_unparsed",
            "--rescore",
            "--judge_repeats",
            "3",
            "--relations",
            "x=a,b",
            "--relations_kwargs",
            "preset=paper",
            "--gate=output",
            "--save_baseline=b.zip",
            "--until=reference-noise vs reference-typeset",
            "--watch=.",
            "--report_mb=10",
        ),
    ]
    assert {w.partition("=")[0] for w in words if w.startswith("--")} | {
        *(
            "--model_names",
            "--ds_names",
            "--custom_model_kwargses",
            "--use_api",
            "--infer",
            "--eval",
            "--images",
            "--prompt_rewriter",
            "--rewriter_kwargs",
        ),
        *("--judges", "--judge_kwargs", "--ds_kwargs", "--help"),
    } == {entry.name for entry in TABLE.values() if entry.prefetch in ("taken", "decisive")}
    result = prefetch(root, "--check", *words, "--model-names", "reference-noise")
    assert result.returncode == 0, result.stderr
    assert "model reference-noise: needs no files" in result.stdout
    assert "--dry_run" in one_error(prefetch(root, "--dry_run"), 2), "it must not download"
    rewriter = prefetch(root, "--check", "--prompt_rewriter", "dtm")
    assert rewriter.returncode == 1
    assert "prompt rewriter dtm: prompts/judge_prompts.json is missing" in rewriter.stderr
    # images made elsewhere need no model, and may be of any
    assert prefetch(root, "--check", "--images", root, "--model_names", "somebodys").returncode == 0


def test_one_cache_for_all_libraries(root: Path) -> None:
    register(root, "tiny", model_path="org/tiny")
    check = ["--check", "--model_names", "tiny"]
    line = one_error(prefetch(root, *check, TRANSFORMERS_CACHE=str(root / "other")), 2)
    assert f"TRANSFORMERS_CACHE is {root / 'other'}" in line and str(root / "home/hub") in line
    assert "not in the cache" in prefetch(root, *check, TRANSFORMERS_CACHE=str(root / "home/hub")).stderr
    no_weights = prefetch(root, "--model_names", "reference-noise", TRANSFORMERS_CACHE=str(root / "other"))
    assert no_weights.returncode == 0


def test_two_caches_block_a_cell_that_reads_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("TRANSFORMERS_CACHE", str(tmp_path / "other"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    blocked = missing_of_model("flux.1-dev", "t2i", False, {})
    assert blocked.startswith("model flux.1-dev: TRANSFORMERS_CACHE is ") and "Run:" not in blocked
    assert missing_of_model("reference-noise", "t2i", False, {}) == ""
    monkeypatch.setenv("TRANSFORMERS_CACHE", str(tmp_path / "hub"))
    assert missing_of_model("flux.1-dev", "t2i", False, {}) == "", "what is missing would be downloaded"


def test_where_nothing_may_be_downloaded_missing_weights_block_a_cell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    blocked = missing_of_model("flux.1-dev", "t2i", False, {})
    assert "is not in the cache" in blocked
    assert "Run: bash utils/prefetch.sh --model_names flux.1-dev (without internet" in blocked
    other = missing_of_model("flux.1-dev", "t2i", False, {"model_path": "org/other"})
    assert '--model_names flux.1-dev --custom_model_kwargses "model_path=org/other"' in other
    assert missing_of_model("reference-noise", "t2i", False, {}) == ""


def test_what_the_disk_refuses_stops_nothing_else(root: Path, hub: HubServer) -> None:
    file = {"url": f"{hub.url}/org/x/resolve/{COMMIT}/readme.md", "licence": "MIT"}
    blocked = {**file, "path": "eval_models/weights/blocked/a.md"}
    register(root, "two", assets=[blocked, {**file, "path": "eval_models/weights/b.md"}])
    (root / "eval_models/weights").mkdir(exist_ok=True)
    (root / "eval_models/weights/blocked").write_text("a file where a folder is needed")
    result = prefetch(root, "--model_names", "two")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "1 asset is missing or wrong" in result.stderr and "blocked" in result.stderr.splitlines()[-1]
    assert (root / "eval_models/weights/b.md").read_bytes() == FILES["readme.md"]


def test_nothing_is_right_by_content_that_was_not_hashed(root: Path) -> None:
    register(root, "tiny", model_path="org/tiny", model_kwargs={"revision": COMMIT})
    folder = root / "home/hub/models--org--tiny/snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    check = ["--check", "--hashes", "--model_names", "tiny"]
    assert "there are no weights for its config.json" in prefetch(root, *check).stderr
    (folder / "model.bin").write_bytes(b"w")
    result = prefetch(root, *check)
    assert result.returncode == 0 and "by content" not in result.stdout
    assert "is there; nothing tells what its files must be" in result.stdout


def test_files_that_only_a_person_can_fetch_are_named_with_address_and_place(root: Path) -> None:
    folder = root / "infer/custom_models/checkpoints/mine"
    by_hand = [
        {
            "url": "https://drive.example.org/folder",
            "path": str((folder / name).relative_to(root)),
            "by_hand": True,
            "licence": "none stated",
        }
        for name in ("a.bin", "b.bin")
    ]
    register(root, "mine", "subject", model_path=str(folder), assets=by_hand)
    result = prefetch(root, "--model_names", "mine")
    assert result.returncode == 1 and "2 assets are missing or wrong" in result.stderr
    for name in ("a.bin", "b.bin"):
        assert f"get it from https://drive.example.org/folder and put it at {folder / name}" in result.stderr
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"w")
    check = prefetch(root, "--check", "--model_names", "mine")
    assert check.returncode == 1 and "mine/b.bin is missing" in check.stderr and "a.bin" not in check.stderr
    # another folder is not asked for files that this entry names
    options = ["--check", "--model_names", "mine", "--custom_model_kwargses", f"model_path={root}"]
    assert prefetch(root, *options).returncode == 0
    (folder / "b.bin").write_bytes(b"w")
    assert prefetch(root, "--check", "--model_names", "mine").returncode == 0


def test_weights_of_ssr_encoder_are_asked_for(root: Path) -> None:
    folder = root / "infer/custom_models/checkpoints/ssr-encoder"
    folder.mkdir(parents=True)
    check = ["--check", "--model_names", "ssr-encoder"]
    empty = prefetch(root, *check).stderr
    for name in ("pytorch_model.bin", "pytorch_model_1.bin"):
        assert f"ssr-encoder/{name} is missing" in empty
        (folder / name).write_bytes(b"w")
    assert "pytorch_model" not in prefetch(root, *check).stderr


def test_names_and_configuration(root: Path) -> None:
    assert "did you mean 'diffusers'" in one_error(prefetch(root, "--model_names", "difusers"), 2)
    api = prefetch(root, "--model_names", "gpt-image-2;any/thing", "--use_api", "true")
    assert api.returncode == 0
    assert "model gpt-image-2: is reached through an API: nothing to fetch" in api.stdout
    assert "model any/thing: is reached through an API: nothing to fetch" in api.stdout
    (root / "config.local.sh").write_text(
        "MODEL_NAMES=('reference-noise')\nCUSTOM_MODEL_KWARGSES=('width=64')\n"
    )
    assert "model reference-noise" in prefetch(root, "--check").stdout
    assert "model" not in prefetch(root, "--check", "--ds_names", "").stdout
    assert "for 2 models" in one_error(
        prefetch(root, "--model_names", "a;b", "--custom_model_kwargses", "x=1"), 2
    )


def test_malformed_asset_of_an_entry_is_told_and_stops_nothing(root: Path) -> None:
    register(root, "broken", assets=[{"code": "owner/name"}])
    result = prefetch(root, "--model_names", "broken;reference-noise")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "MODEL_SETTINGS['t2i']['broken']: 'assets', entry 0: lacks 'licence'" in result.stderr
    assert "model reference-noise" in result.stdout


def test_code_comes_out_of_a_mirror_and_weights_do_not(root: Path, tmp_path: Path) -> None:
    code = {"code": "owner/net", "commit": "c" * 40, "tree": TREE, "to": "net", "licence": "MIT"}
    register(root, "authors", model_path="org/tiny", assets=[code])
    (tmp_path / "mirror/owner/net" / ("c" * 40)).mkdir(parents=True)
    (tmp_path / "mirror/owner/net" / ("c" * 40) / "run.py").write_text(CODE)
    result = prefetch(root, "--model_names", "authors", "--mirror", tmp_path / "mirror")
    assert (root / "infer/custom_models/code/net/run.py").read_text() == CODE, result.stderr
    assert result.returncode == 1 and "1 asset is missing or wrong" in result.stderr
    assert "org/tiny is not in the cache" in result.stderr


class TestEvaluators:
    """What ``--check`` misses of evaluators where nothing was fetched."""

    @pytest.fixture(autouse=True)
    def rules(self, root: Path) -> None:
        """The benchmarks' code."""
        for source in (REPO / "benchmarks").glob("*/[a-z]*.*"):
            (root / "benchmarks" / source.parent.name).mkdir(exist_ok=True)
            shutil.copy(source, root / "benchmarks" / source.parent.name)

    def missing(self, root: Path, benchmark: str, *options: str) -> str:
        result = prefetch(root, "--check", "--ds_names", benchmark, *options)
        assert "Traceback" not in result.stderr
        return result.stdout + result.stderr

    def test_judges(self, root: Path) -> None:
        assert "Qwen/Qwen3-VL-8B-Instruct at 0c351dd is not in the cache" in self.missing(root, "geneval2")
        assert "Qwen/Qwen3.5-35B-A3B is not in the cache" in self.missing(root, "wise-verified")
        assert "its judge gpt-4o-2024-05-13 is asked over the network" in self.missing(root, "wise")
        assert "is not in" not in self.missing(root, "longtext", "--judges", "longtext=ppocr")
        assert "is not in" not in self.missing(root, "geneval2", "--eval", "false")
        served = self.missing(root, "wise-verified", "--judge_kwargs", "base_url=http://gpu1:8000/v1")
        assert "is not in" not in served and "is asked over the network" in served
        mine = self.missing(root, "geneval2", "--judges", "geneval2=transformers:org/mine")
        assert "org/mine is not in the cache" in mine
        assert "there is no /models/mine" in self.missing(
            root, "geneval2", "--judges", "geneval2=vllm:/models/mine"
        )
        pinned = self.missing(root, "geneval2", "--judge_kwargs", f"revision={'d' * 40}")
        assert "Qwen/Qwen3-VL-8B-Instruct at ddddddd" in pinned

    def test_encoders(self, root: Path) -> None:
        everything = self.missing(root, "oneig")
        for named in (
            "Qwen/Qwen2.5-VL-7B-Instruct at cc59489",
            "eval_models/weights/csd/checkpoint.pth",
            "xingpng/OneIG-StyleEncoder",
            "microsoft/LLM2CLIP-Openai-L-14-336",
            "microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned",
            "eval_models/weights/dreamsim: ",
            "facebookresearch/dino (eval_models/weights/dreamsim/facebookresearch_dino_main)",
            "eval_models/weights/dreamsim/checkpoints/dino_vitbase16_pretrain.pth",
        ):
            assert named in everything, everything
        some = self.missing(root, "oneig", "--judges", "oneig=ppocr", "--ds_kwargs", "tasks='text,style'")
        assert "csd/checkpoint.pth" in some and "Qwen" not in some and "dreamsim" not in some
        own = self.missing(
            root, "oneig", "--ds_kwargs", 'tasks="style",weights={"csd":"/w/csd.pth","se":"org/se"}'
        )
        assert "there is no /w/csd.pth" in own and "org/se is not in" in own and "eval_models" not in own


def test_record_of_what_was_fetched(root: Path, hub: HubServer) -> None:
    register(root, "tiny", model_path="org/tiny", model_kwargs={"revision": COMMIT}, patterns=["*.json"])
    assert prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url).returncode == 0
    record = json.loads((root / f"home/hub/models--org--tiny/imageevalkit/{COMMIT}.json").read_text())
    assert record["files"].keys() == hub.files.keys(), "those of other patterns are known too"


def test_a_cache_that_can_only_be_read_is_right_where_it_is_whole(root: Path, hub: HubServer) -> None:
    register(root, "tiny", assets=[{"hub": "org/rows", "type": "dataset", "patterns": ["*.json"]}])
    register(root, "more", assets=[{"hub": "org/rows", "type": "dataset"}])
    home = root / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(home)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk needs root")
    try:
        assert prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url).returncode == 0
        for ours in ("imageevalkit", "trees"):  # others have filled it
            shutil.rmtree(home / "hub/datasets--org--rows" / ours)
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
        again = prefetch(root, "--model_names", "tiny", HF_ENDPOINT=hub.url)
        assert again.returncode == 0, again.stderr
        lacking = prefetch(root, "--model_names", "more", HF_ENDPOINT=hub.url)
        assert lacking.returncode == 1 and "try 2 of" not in lacking.stderr
        assert "Read-only file system; set HF_HOME to a folder of yours" in lacking.stderr.splitlines()[-1]
    finally:
        subprocess.run(["umount", str(home)], check=True)
