"""Which assets models and evaluators need: what ``utils/prefetch.sh --check`` misses, and one message on all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.plan.models import missing_of_model
from tests.support.commands import prefetch_here
from tests.support.extras import needs_extra

pytestmark = needs_extra("prefetch")

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
    assert "Run: bash eval.sh prefetch --model_names flux.1-dev (without internet" in blocked
    other = missing_of_model("flux.1-dev", "t2i", False, {"model_path": "org/other"})
    assert '--model_names flux.1-dev --custom_model_kwargses "model_path=org/other"' in other
    assert missing_of_model("reference-noise", "t2i", False, {}) == ""


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
    (folder / "b.bin").write_bytes(b"w")
    assert prefetch_here("--check", "--model_names", "mine").status == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ds_names", "quicktxt"], "did you mean 'quicktext'"),
        (["--mirror", "/nowhere"], "--mirror: there is no folder /nowhere"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: list[str], says: str) -> None:
    ended = prefetch_here(*words)
    assert ended.status == 2 and says in ended.error and "\n" not in ended.error


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
    served = of("wise-verified", "--judge_kwargs", "base_url=http://gpu1:8000/v1")
    assert "is not in" not in served and "is asked over the network" in served
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
