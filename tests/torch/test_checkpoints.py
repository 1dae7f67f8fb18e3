"""Checkpoints of a run: which folders are some, whether they are whole, and the models that they become."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from custom_models.model_settings.own import CHECKPOINTS
from imageevalkit import registry
from imageevalkit.assets.checkpoints import files_of, holds_checkpoints, steps_in, tells_all, what_lacks
from imageevalkit.common.errors import UserError
from imageevalkit.extras.watch.checkpoints import lacks_of, with_checkpoints
from imageevalkit.plan.models import missing_of_model, resolve_model
from imageevalkit.plan.options import Options
from imageevalkit.store.cell import by_name, checkpoint_of
from tests.support.checkpoints import begin_checkpoint, end_checkpoint, weights

RUN = "reference-noise"


def expanded(model: str, kwargs: dict[str, Any], **more: Any) -> dict[str, dict[str, Any]]:
    return with_checkpoints(Options(models={model: kwargs}, **more))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in (
        "checkpoint-500",
        "checkpoint-1000",
        "tmp-checkpoint-2000",
        "step_03000.tmp",
        ".checkpoint-9",
    ):
        end_checkpoint(tmp_path / "run" / name)
    (tmp_path / "run/logs/version_0").mkdir(parents=True)
    (tmp_path / "run/trainer_state.json").write_text("{}")
    return tmp_path / "run"


def test_names_tell_run_and_step(tmp_path: Path) -> None:
    steps = {"checkpoint-1000": 1000, "step_0002000": 2000, "3000": 3000, "epoch=3-step=4000": 4000}
    for name in (*steps, "unet", "tmp-checkpoint-7", "checkpoint-7.incomplete"):
        (tmp_path / name).mkdir()
    assert steps_in(tmp_path) == {step: tmp_path / name for name, step in steps.items()}
    assert checkpoint_of("org/run@1000") == ("org/run", 1000)
    assert not any(map(checkpoint_of, ("run", "run@latest", "@5", "run@05")))
    names = ["run@1000", "b", "run@500", "run"]
    assert sorted(names, key=by_name) == ["b", "run", "run@500", "run@1000"]


def test_a_folder_of_checkpoints_becomes_models_by_step(run: Path) -> None:
    found = expanded(RUN, {"model_path": str(run), "width": 64})
    assert list(found) == [f"{RUN}@500", f"{RUN}@1000"]
    assert found[f"{RUN}@500"] == {"model_path": str(run / "checkpoint-500"), "width": 64}
    assert expanded(f"{RUN}@1000", {"model_path": str(run)}) == {
        f"{RUN}@1000": {"model_path": str(run / "checkpoint-1000")}
    }
    one = {"model_path": str(run / "checkpoint-1000")}
    assert expanded(f"{RUN}@1000", one) == {f"{RUN}@1000": one}, "the folder of the step itself will do, too"


def test_what_is_a_checkpoint_itself_stays_one_model(run: Path, tmp_path: Path) -> None:
    # as trainers of diffusers leave it: the last weights beside the folders of the steps before
    (run / "model_index.json").write_text("{}")
    assert list(expanded(RUN, {"model_path": str(run)})) == [RUN]
    assert list(expanded(f"{RUN}@500", {"model_path": str(run)})) == [f"{RUN}@500"]
    end_checkpoint(tmp_path / "parts/vae")
    end_checkpoint(tmp_path / "parts/llm-7")
    assert list(expanded(RUN, {"model_path": str(tmp_path / "parts")})) == [RUN]
    assert list(expanded(RUN, {"model_path": "org/name"})) == [RUN]


def test_lora_checkpoints_are_folders_or_files(tmp_path: Path) -> None:
    for step in (500, 1000):
        folder = tmp_path / f"run/checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "pytorch_lora_weights.safetensors").write_bytes(weights())
    found = expanded("qwen-image", {"lora": str(tmp_path / "run")})
    assert found["qwen-image@500"] == {"lora": str(tmp_path / "run/checkpoint-500")}
    files = tmp_path / "files"
    files.mkdir()
    (files / "style-v2.safetensors").write_bytes(weights())
    assert list(expanded("qwen-image", {"lora": str(files)})) == ["qwen-image"], "one file is the LoRA itself"
    (files / "style-v2.safetensors").unlink()
    for step in (10, 9):
        (files / f"style-{step:06d}.safetensors").write_bytes(weights())
    found = expanded("qwen-image", {"lora": str(files)})
    assert list(found) == ["qwen-image@9", "qwen-image@10"]
    assert found["qwen-image@9"] == {"lora": str(files / "style-000009.safetensors")}


def test_sample_images_beside_checkpoints_are_no_checkpoints(tmp_path: Path) -> None:
    """Trainers write them to folders of their own, of the same steps and of others."""
    for step in (8, 12, 16):
        (tmp_path / f"samples-{step}").mkdir()
        (tmp_path / f"samples-{step}/0.png").touch()
    end_checkpoint(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-16").mkdir()
    assert steps_in(tmp_path) == {step: tmp_path / f"checkpoint-{step}" for step in (8, 16)}
    assert holds_checkpoints(tmp_path)


def test_what_cannot_be_meant_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint of step 7 in .*run \(there: 500, 1000\)"):
        expanded(f"{RUN}@7", {"model_path": str(run)})
    end_checkpoint(run / "step_1000")
    with pytest.raises(UserError, match="checkpoint-1000 and step_1000 are both of step 1000"):
        expanded(RUN, {"model_path": str(run)})
    assert list(expanded(f"{RUN}@7", {}, infer=False)) == [f"{RUN}@7"], "its images may be there"


def test_the_cache_folder_of_a_repository_stands_for_its_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "hub/models--org--name"
    for commit in ("a1", "b2"):
        (folder / "snapshots" / commit).mkdir(parents=True)
    kwargs = {"model_path": str(folder)}
    with pytest.raises(UserError, match=r"cache with 2 snapshots: name one of them, as \S+/snapshots/a1$"):
        resolve_model(RUN, "t2i", False, kwargs)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("b2\n")
    assert resolve_model(RUN, "t2i", False, kwargs)["model_path"] == str(folder / "snapshots/b2")
    judge = registry.choose_judge(f"transformers:{folder}")
    assert judge.setting.model_path == str(folder / "snapshots/b2")
    assert judge.name == str(folder), "the name that the user gave"
    (folder / "refs/main").unlink()
    (folder / "snapshots/a1").rmdir()
    assert resolve_model(RUN, "t2i", False, kwargs)["model_path"] == str(folder / "snapshots/b2")


def test_a_checkpoint_that_is_half_there_blocks_its_cells(run: Path) -> None:
    begin_checkpoint(run / "checkpoint-1500")
    found = expanded(RUN, {"model_path": str(run)})
    told = {model: lacks_of(model, kwargs) for model, kwargs in found.items()}
    assert "model.safetensors has 1000 bytes instead of" in told.pop(f"{RUN}@1500")
    assert not any(told.values())
    assert not missing_of_model(f"{RUN}@500", "t2i", False, found[f"{RUN}@500"])


def test_no_pipeline_is_taken_for_whole_before_its_last_file(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "late", tmp_path / "whole")
    # in the order of save_pretrained: its parts in any, what names them last
    files = sorted(files_of(tmp_path / "whole"), key=lambda name: (name == "model_index.json", name))
    assert not what_lacks(tmp_path / "whole")
    assert tells_all(tmp_path / "whole")
    growing = tmp_path / "growing"
    for name in files:
        data, target = (tmp_path / "whole" / name).read_bytes(), growing / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for written in (data[:0], data[: len(data) // 2]):
            target.write_bytes(written)
            assert what_lacks(growing) or not tells_all(growing), name
        target.write_bytes(data)
        assert what_lacks(growing) or not tells_all(growing) or name == files[-1], name
    assert not what_lacks(growing)
    shutil.rmtree(growing / "vae")
    assert what_lacks(growing) == "model_index.json names the part vae, which is missing"


def test_what_torch_has_saved_is_whole_with_its_last_byte(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "3000" / "diffusion_pytorch_model.bin"
    path.parent.mkdir()
    torch.save({"a": torch.zeros(1000)}, path)
    assert not what_lacks(path.parent)
    assert not tells_all(path.parent), "nothing says that there is no more to come"
    path.write_bytes(path.read_bytes()[:-30])
    assert what_lacks(path.parent) == "diffusion_pytorch_model.bin is cut short"
    path.write_bytes(b"")
    assert what_lacks(path.parent) == "diffusion_pytorch_model.bin is empty"
    assert holds_checkpoints(tmp_path)
