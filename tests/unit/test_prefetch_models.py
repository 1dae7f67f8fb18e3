"""Which assets models and evaluators need: what ``utils/prefetch.sh --check`` misses, and one message on all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.plan.models import missing_of_model
from imageevalkit.plan.options import TABLE
from tests.support.commands import prefetch_here
from tests.support.hub_server import COMMIT

CODE = "print('hello')\n"
# git's hash of a folder with CODE as run.py
TREE = "aaa6413d01d8b639c0b9db5ef1088373062a112f"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all that is fetched: the tree's own may have anything."""
    for module in ("git", "http"):
        monkeypatch.setattr(f"imageevalkit.assets.{module}.REPO", tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def register(monkeypatch: pytest.MonkeyPatch, name: str, task: str = "t2i", **entry: Any) -> None:
    setting = {"module": ".model_utils.x", "class": "X", "model_path": "", **entry}
    monkeypatch.setitem(MODEL_SETTINGS[task], name, setting)


def missing(*words: str | Path) -> str:
    """Returns the lines of ``--check``."""
    ended = prefetch_here("--check", *words)
    return ended.said + ended.error


def test_a_model_path_of_the_users_own_may_be_a_folder(root: Path) -> None:
    words = ["--model_names", "diffusers", "--custom_model_kwargses"]
    assert "/no/where is missing" in prefetch_here(*words, "model_path=/no/where").error
    (root / "model.safetensors").write_bytes(b"w")
    assert prefetch_here(*words, f"model_path={root}").said.startswith("[1/1]")


def test_weights_of_the_tasks_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "two", model_path="org/t2i")
    register(monkeypatch, "two", "edit", model_path="org/edit")
    everything = missing("--model_names", "two")
    assert "org/t2i is not" in everything and "org/edit is not" in everything
    of_benchmark = missing("--model_names", "two", "--ds_names", "longtext", "--judges", "longtext=ppocr")
    assert "org/t2i is not" in of_benchmark and "org/edit is not" not in of_benchmark
    configured = prefetch_here("--check", MODEL_NAMES="two", DS_NAMES="longtext").error
    assert "org/t2i is not" in configured and "org/edit" not in configured


def test_files_are_those_of_the_tasks_that_a_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "mine")
    for names, says in (("trig-p2p;quicktext", "mine: needs no files"), ("trig-p2p", "does t2i, not edit")):
        assert says in missing("--model_names", "mine", "--ds_names", names)
    monkeypatch.setitem(MODEL_SETTINGS, "stray", {"module": ".model_utils.x", "class": "X"})
    stray = prefetch_here("--check", "--model_names", "stray")
    assert (
        stray.status == 2
        and "MODEL_SETTINGS['stray'] in infer/custom_models/load_model.py is no task" in (stray.error)
    )


def test_every_option_of_a_run_is_taken(root: Path) -> None:
    words = [
        *["--parallel", "true", "--limit", "4", "--replicas=2", "--launcher", "slurm", "--num_workers", "8"],
        *["--requests_per_minute", "9", "--max_cost", "1", "--missing_items", "official", "--overwrite"],
        *["--retry_refused", "true", "--batch", "--retry_unparsed", "--rescore", "--judge_repeats", "3"],
        *[
            "--relations",
            "x=a,b",
            "--relations_kwargs",
            "preset=paper",
            "--gate=output",
            "--save_baseline=b.zip",
        ],
        *("--until=reference-noise vs reference-typeset", "--watch=.", "--report_mb=10"),
    ]
    others = (
        "--model_names --ds_names --custom_model_kwargses --use_api --infer --eval --images --prompt_rewriter "
        "--rewriter_kwargs --judges --judge_kwargs --ds_kwargs --help"
    )
    assert {w.partition("=")[0] for w in words if w.startswith("--")} | {*others.split()} == {
        entry.name for entry in TABLE.values() if entry.prefetch in ("taken", "decisive")
    }
    result = prefetch_here("--check", *words, "--model-names", "reference-noise")
    assert result.status == 0, result.error
    assert "model reference-noise: needs no files" in result.said
    not_for_it = prefetch_here("--dry_run")
    assert not_for_it.status == 2 and "--dry_run" in not_for_it.error, "it must not download"
    # images made elsewhere need no model, and may be of any
    assert prefetch_here("--check", "--images", root, "--model_names", "somebodys").status == 0


def test_one_cache_for_all_libraries(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    register(monkeypatch, "tiny", model_path="org/tiny")
    monkeypatch.setenv("TRANSFORMERS_CACHE", str(root / "other"))
    ended = prefetch_here("--check", "--model_names", "tiny")
    assert ended.status == 2 and f"TRANSFORMERS_CACHE is {root / 'other'}" in ended.error
    assert str(root / "home/hub") in ended.error
    assert prefetch_here("--model_names", "reference-noise").status == 0
    monkeypatch.setenv("TRANSFORMERS_CACHE", str(root / "home/hub"))
    assert "not in the cache" in missing("--model_names", "tiny")


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


def test_nothing_is_right_by_content_that_was_not_hashed(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    register(monkeypatch, "tiny", model_path="org/tiny", model_kwargs={"revision": COMMIT})
    folder = root / "home/hub/models--org--tiny/snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert "there are no weights for its config.json" in missing("--hashes", "--model_names", "tiny")
    (folder / "model.bin").write_bytes(b"w")
    result = prefetch_here("--check", "--hashes", "--model_names", "tiny")
    assert result.status == 0 and "by content" not in result.said
    assert "exists; its expected files are unknown" in result.said


def test_files_that_only_a_person_can_fetch_are_named_with_address_and_place(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    folder, url = root / "infer/custom_models/checkpoints/mine", "https://drive.example.org/folder"
    by_hand = [
        {
            "url": url,
            "path": str((folder / name).relative_to(root)),
            "by_hand": True,
            "licence": "none stated",
        }
        for name in ("a.bin", "b.bin")
    ]
    monkeypatch.setattr("imageevalkit.plan.models.REPO", root)
    register(monkeypatch, "mine", "subject", model_path=str(folder), assets=by_hand)
    result = prefetch_here("--model_names", "mine")
    assert result.status == 1 and "2 assets are missing or wrong" in result.error
    for name in ("a.bin", "b.bin"):
        assert f"get it from {url} and put it at {folder / name}" in result.error
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"w")
    found = prefetch_here("--check", "--model_names", "mine").error
    assert "mine/b.bin is missing" in found and "a.bin" not in found
    # another folder is not asked for files that this entry names
    (root / "model.safetensors").write_bytes(b"w")
    words = ["--check", "--model_names", "mine", "--custom_model_kwargses", f"model_path={root}"]
    assert prefetch_here(*words).status == 0
    (folder / "b.bin").write_bytes(b"w")
    assert prefetch_here("--check", "--model_names", "mine").status == 0


def test_names_and_configuration() -> None:
    assert "did you mean 'diffusers'" in prefetch_here("--model_names", "difusers").error
    api = prefetch_here("--model_names", "gpt-image-2;any/thing", "--use_api", "true")
    assert api.status == 0
    assert "model gpt-image-2: is reached through an API: nothing to fetch" in api.said
    assert "model any/thing: is reached through an API: nothing to fetch" in api.said
    configured = {"MODEL_NAMES": "reference-noise", "CUSTOM_MODEL_KWARGSES": "width=64"}
    assert "model reference-noise" in prefetch_here("--check", **configured).said
    assert "model" not in prefetch_here("--check", "--ds_names", "", **configured).said
    assert "for 2 models" in prefetch_here("--model_names", "a;b", "--custom_model_kwargses", "x=1").error


def test_benchmark_is_known_by_its_name_and_its_folder(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr("imageevalkit.assets.BENCHMARKS", root)
    for names in ("wise-verified", "wise_verified", "wise-verified;wise_verified"):
        told = missing("--eval", "false", "--ds_names", names)
        assert told.count("wise-verified: cultural_common_sense_verified.json is missing") == 1, told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ds_names", "quicktxt"], "did you mean 'quicktext'"),
        (["--nope"], "--nope"),
        (["--mirror", "/nowhere"], "--mirror: there is no folder /nowhere"),
        (["--ds_names"], "--ds_names"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], says: str) -> None:
    ended = prefetch_here(*words)
    assert ended.status == 2 and says in ended.error and "\n" not in ended.error


def test_malformed_asset_of_an_entry_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "broken", assets=[{"code": "owner/name"}])
    result = prefetch_here("--model_names", "broken;reference-noise")
    assert "MODEL_SETTINGS['t2i']['broken']: 'assets', entry 0: lacks 'licence'" in result.error
    assert result.status == 1 and "model reference-noise" in result.said


def test_code_comes_out_of_a_mirror_and_weights_do_not(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    code = {"code": "owner/net", "commit": "c" * 40, "tree": TREE, "to": "net", "licence": "MIT"}
    register(monkeypatch, "authors", model_path="org/tiny", assets=[code])
    (root / "mirror/owner/net" / ("c" * 40)).mkdir(parents=True)
    (root / "mirror/owner/net" / ("c" * 40) / "run.py").write_text(CODE)
    result = prefetch_here("--model_names", "authors", "--mirror", root / "mirror")
    assert (root / "infer/custom_models/code/net/run.py").read_text() == CODE, result.error
    assert result.status == 1 and "1 asset is missing or wrong" in result.error
    assert "org/tiny is not in the cache" in result.error


def test_judges() -> None:
    def of(benchmark: str, *words: str) -> str:
        return missing("--ds_names", benchmark, *words)

    assert "Qwen/Qwen3-VL-8B-Instruct at 0c351dd is not in the cache" in of("geneval2")
    assert "Qwen/Qwen3.5-35B-A3B is not in the cache" in of("wise-verified")
    assert "its judge gpt-4o-2024-05-13 is asked over the network" in of("wise")
    assert "is not in" not in of("longtext", "--judges", "longtext=ppocr")
    assert "is not in" not in of("geneval2", "--eval", "false")
    served = of("wise-verified", "--judge_kwargs", "base_url=http://gpu1:8000/v1")
    assert "is not in" not in served and "is asked over the network" in served
    mine = of("geneval2", "--judges", "geneval2=transformers:org/mine")
    assert "org/mine is not in the cache" in mine
    assert "/models/mine is missing" in of("geneval2", "--judges", "geneval2=vllm:/models/mine")
    pinned = of("geneval2", "--judge_kwargs", f"revision={'d' * 40}")
    assert "Qwen/Qwen3-VL-8B-Instruct at ddddddd" in pinned


def test_encoders() -> None:
    everything = missing("--ds_names", "oneig")
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
    judge = ("--judges", "oneig=ppocr")
    some = missing("--ds_names", "oneig", *judge, "--ds_kwargs", "tasks='text,style'")
    assert "csd/checkpoint.pth" in some and "Qwen" not in some and "dreamsim" not in some
    weights = 'tasks="style",weights={"csd":"/w/csd.pth","se":"org/se"}'
    own = missing("--ds_names", "oneig", "--ds_kwargs", weights)
    assert "/w/csd.pth is missing" in own and "org/se is not in" in own and "eval_models" not in own
