"""Images through an encoder: each once, in batches that fit, few at a time; and which weights an encoder has."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eval_models.encoders.encoder import Encoder
from eval_models.encoders.weights import WEIGHTS, find
from imageevalkit import registry
from imageevalkit.benchmark.question import Encoding, Picture, Question
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.common.images import sha256_file
from tests.support.image_questions import ask_about, save_image
from tests.support.waiting import wait_for


def pictures(folder: Path, count: int) -> list[Picture]:
    return [save_image(folder / f"{n}.png", (20 + n, 24), seed=n) for n in range(count)]


class Model(Encoder):
    """A test encoder: by default it prepares the image's size; its answer is the result of ``forward``."""

    def __init__(
        self,
        forward: Callable[[list[Any]], Sequence[Any]],
        prepare: Callable[[Image.Image], Any] = lambda image: image.size,
        device: str = "cpu",
        batch_size: int = 2,
    ) -> None:
        super().__init__({}, device, batch_size)
        self._forward, self._prepare = forward, prepare

    @property
    def identity(self) -> dict[str, Any]:
        return {}

    def load(self, questions: Sequence[Question]) -> None:
        return

    def prepare(self, image: Image.Image) -> Any:
        return self._prepare(image)

    def forward(self, batch: list[Any]) -> Sequence[Any]:
        return self._forward(batch)

    def measure(self, question: Question, features: Any) -> dict[str, Any]:
        return {"value": features}


def run(questions: Sequence[Question], forward: Any, **model: Any) -> list[tuple[str, Any, str]]:
    """Item, value and error of each question."""
    answers = Model(forward, **model).ask(questions)
    return [(a.question.item, a.text and json.loads(a.text)["value"], a.error) for a in answers]


def test_every_image_in_order_in_batches(tmp_path: Path) -> None:
    sizes: list[int] = []

    def forward(batch: list[Any]) -> list[int]:
        sizes.append(len(batch))
        return [width for width, _ in batch]

    questions = [ask_about(picture, "?") for picture in pictures(tmp_path, 5)]
    assert run(questions, forward) == [(str(n), 20 + n, "") for n in range(5)]
    assert sizes == [2, 2, 1]
    assert run([], forward) == []


def test_what_does_not_decode_is_an_error_and_the_others_go_on(tmp_path: Path) -> None:
    good = pictures(tmp_path, 3)
    broken = tmp_path / "broken.png"
    broken.write_bytes(good[0].path.read_bytes()[:-40])
    gone = Picture(tmp_path / "gone.png", "0" * 64)
    asked = [good[0], Picture(broken, "1" * 64), good[1], gone, good[2]]
    found = run([ask_about(picture, "?") for picture in asked], lambda batch: batch)
    assert [item for item, features, _ in found if features] == ["0", "1", "2"]
    errors = {item: error for item, _, error in found if error}
    assert errors.keys() == {"broken", "gone"}
    assert errors["broken"].startswith("unreadable image: ")
    assert "gone.png" in errors["gone"]


def test_where_memory_runs_out_batches_are_halved_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    tried: list[int] = []

    def forward(batch: list[Any]) -> list[Any]:
        tried.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    questions = [ask_about(picture, "?") for picture in pictures(tmp_path, 13)]
    found = run(questions, forward, batch_size=8)
    assert [item for item, _, _ in found] == [str(n) for n in range(13)]
    assert tried == [8, 4, 2, 2, 2, 2, 2, 2, 1]
    said = capsys.readouterr().out
    assert said.count("out of GPU memory") == 2
    assert "from now on 2 images in one forward pass" in said


def test_only_a_few_batches_are_in_memory_and_nothing_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a GPU the next two batches are prepared meanwhile."""
    monkeypatch.setattr("eval_models.encoders.encoder.available_cores", lambda: 1)
    prepared = 0
    lock = threading.Lock()

    def prepare(image: Image.Image) -> int:
        nonlocal prepared
        with lock:
            prepared += 1
        return prepared

    def are_prepared(count: int) -> bool:
        return prepared >= count

    questions = [ask_about(picture, "?") for picture in pictures(tmp_path, 40)]
    threads = threading.active_count()
    model = Model(list, prepare)
    model.device = "cuda:0"  # which is not here
    answers = model.ask(questions)
    for done in range(2, 20, 2):
        next(answers), next(answers)
        wait_for(functools.partial(are_prepared, done + 4))
        assert prepared == done + 4
    answers.close()  # type: ignore[attr-defined]  # an interrupted run
    assert threading.active_count() == threads
    assert prepared < 40


def test_an_image_that_questions_share_is_read_and_encoded_once(tmp_path: Path) -> None:
    (picture,) = pictures(tmp_path, 1)
    copy = tmp_path / "copy.png"
    shutil.copyfile(picture.path, copy)
    questions = [
        ask_about(picture, "baroque"),
        ask_about(picture, "clay", name="r"),
        ask_about(Picture(copy, sha256_file(copy)), "clay"),
        # other pixels
        ask_about(picture._replace(encoding=Encoding("JPEG")), "clay", name="s"),
    ]
    found = run(questions, list, batch_size=8, prepare=lambda image: image.tobytes().hex())
    assert [item for item, _, _ in found] == ["0", "0", "copy", "0"]
    shared = found[0][1]
    assert [value == shared for _, value, _ in found] == [True, True, True, False]
    sizes: list[int] = []
    run(questions, lambda batch: sizes.append(len(batch)) or batch, batch_size=8)  # type: ignore[func-returns-value]
    assert sizes == [2]


def test_a_model_that_cannot_go_on_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    lost = threading.Event()
    monkeypatch.setattr("eval_models.encoders.encoder.device_lost", lost)

    def forward(batch: list[Any]) -> list[Any]:
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore words", 0)

    with pytest.raises(CellFailure, match=r"^encoders: the model failed: AcceleratorError") as error:
        run([ask_about(picture, "?") for picture in pictures(tmp_path, 1)], forward)
    assert "\n" not in str(error.value)
    assert lost.is_set(), "the process cannot use the GPU any more"


def test_a_number_that_is_none_is_an_error(tmp_path: Path) -> None:
    questions = [ask_about(picture, "?") for picture in pictures(tmp_path, 2)]
    found = run(questions, lambda batch: [float("nan"), 0.5])
    assert found == [("0", None, "the encoder gave no finite number"), ("1", 0.5, "")]


def test_missing_weights_say_in_one_line_where_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for weights, origin in (
        ({"csd": str(tmp_path / "nowhere")}, "tomg-group-umd/CSD-ViT-L"),
        ({"se": str(tmp_path / "nowhere")}, "the hub has it as"),
        ({}, WEIGHTS["se"]),
    ):
        with pytest.raises(CellFailure) as error:
            find("csd" if "csd" in weights else "se", weights)
        assert origin in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"unknown weights 'cds' \(did you mean 'csd'\?\)"):
        find("se", {"cds": "/x"})


def test_weights_are_told_by_content_and_not_by_place(tmp_path: Path) -> None:
    def identity(place: Path) -> dict[str, Any]:
        return find("se", {"se": str(place)}).identity

    first, second = tmp_path / "a" / "se", tmp_path / "elsewhere"
    first.mkdir(parents=True)
    (first / "model.safetensors").write_bytes(b"weights")
    shutil.copytree(first, second)
    assert identity(first) == identity(second)
    assert str(tmp_path) not in str(identity(first))
    (second / "model.safetensors").write_bytes(b"Weights")
    assert identity(first) != identity(second)


def test_missing_reference_vectors_are_told_when_the_run_is_planned(tmp_path: Path) -> None:
    options = {"references": {"csd": str(tmp_path / "gone.pt")}, "weights": {"csd": __file__, "se": "org/se"}}
    remedy = "; bash eval.sh prefetch --ds_names oneig gets it"
    assert registry.measurer_missing("csd+se", options) == [
        f"encoders: there is no file of reference vectors for 'csd' at {tmp_path}/gone.pt{remedy}",
        f"encoders: there is no file of reference vectors for 'se' in references['se']{remedy}",
    ]
