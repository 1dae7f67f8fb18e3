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
    sizes: list[int] = []
    prepared: list[Any] = []

    def prepare(image: Image.Image) -> int:
        prepared.append(image)
        return len(prepared)

    def forward(batch: list[Any]) -> list[Any]:
        sizes.append(len(batch))
        return batch

    found = list(Model(forward, prepare, batch_size=8).ask(questions))
    assert (len(prepared), sizes) == (2, [2])
    names = [(a.question.item, a.question.name, a.text) for a in found]
    shared = names[0][2]
    assert names[:3] == [("0", "q", shared), ("0", "r", shared), ("copy", "q", shared)]
    assert names[3][2] != shared


def test_the_model_sees_what_the_encoding_leaves(tmp_path: Path) -> None:
    noise = Image.effect_noise((40, 40), 90).convert("RGB")
    noise.save(tmp_path / "noise.png")
    plain = Picture(tmp_path / "noise.png", sha256_file(tmp_path / "noise.png"))
    jpeg = plain._replace(encoding=Encoding("JPEG"))
    noise.save(tmp_path / "default.jpg")
    questions = [ask_about(plain, "?"), ask_about(jpeg, "?")]
    answers = run(questions, list, batch_size=1, prepare=lambda image: image.tobytes().hex())
    found = [bytes.fromhex(value) for _, value, _ in answers]
    with Image.open(tmp_path / "default.jpg") as default:
        assert found == [noise.tobytes(), default.tobytes()]
    assert found[0] != found[1]


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


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("OutOfMemoryError", "too little GPU memory is free for one image"),
        ("AcceleratorError", "^encoders: the model failed: AcceleratorError"),
    ],
)
def test_a_model_that_cannot_go_on_is_one_line(
    tmp_path: Path, kind: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    lost = threading.Event()
    monkeypatch.setattr("eval_models.encoders.encoder.device_lost", lost)

    def forward(batch: list[Any]) -> list[Any]:
        raise getattr(torch, kind)("CUDA error: an illegal memory access\nmore words", 0)

    with pytest.raises(CellFailure, match=says) as error:
        run([ask_about(picture, "?") for picture in pictures(tmp_path, 3)], forward)
    assert "\n" not in str(error.value)
    assert lost.is_set() == (kind == "AcceleratorError"), "the process cannot use the GPU any more"


def test_what_an_encoder_says_itself_is_said_once(tmp_path: Path) -> None:
    def forward(batch: list[Any]) -> list[Any]:
        raise CellFailure("encoders: so it is")

    with pytest.raises(CellFailure, match=r"^encoders: so it is$"):
        run([ask_about(picture, "?") for picture in pictures(tmp_path, 1)], forward)


def test_an_unknown_device_is_one_line() -> None:
    with pytest.raises(CellFailure, match="torch cannot use the device 'gpu': RuntimeError"):
        _ = Model(list, device="gpu").device


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_only_a_few_batches_are_in_memory_and_nothing_works_on(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a GPU the next two batches are prepared meanwhile; a model on the CPU has all cores for itself."""
    monkeypatch.setattr("eval_models.encoders.encoder.available_cores", lambda: 1)
    ahead = 0 if device == "cpu" else 2 * 2
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
    model.device = device  # which is not here
    answers = model.ask(questions)
    for done in range(2, 20, 2):
        next(answers), next(answers)
        wait_for(functools.partial(are_prepared, done + ahead))
        assert prepared == done + ahead
    answers.close()  # type: ignore[attr-defined]  # an interrupted run
    assert threading.active_count() == threads
    assert prepared < 40


def test_a_number_that_is_none_is_an_error(tmp_path: Path) -> None:
    questions = [ask_about(picture, "?") for picture in pictures(tmp_path, 2)]
    found = run(questions, lambda batch: [float("nan"), 0.5])
    assert found == [("0", None, "the encoder gave no finite number"), ("1", 0.5, "")]


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("csd", "tomg-group-umd/CSD-ViT-L"),
        ("dreamsim", "dreamsim_ensemble_checkpoint.zip"),
        ("mplug", "; put the files of https://www.modelscope.cn/"),
    ],
)
def test_missing_files_say_where_to_get_them(tmp_path: Path, name: str, origin: str) -> None:
    place = tmp_path / "nowhere"
    with pytest.raises(CellFailure) as error:
        find(name, {name: str(place)})
    message = str(error.value)
    assert f"'{name}'" in message and str(place) in message and origin in message
    assert f"""--ds_kwargs 'weights={{"{name}": "/path"}}'""" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(n for n, place in WEIGHTS.items() if not place.startswith("/")))
def test_missing_hub_weights_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CellFailure) as error:
        find(name, {})
    assert WEIGHTS[name] in str(error.value) and "encoders: " in str(error.value)
    assert "\n" not in str(error.value)
    place = str(tmp_path / "no" / "folder")
    with pytest.raises(CellFailure, match=r"are not at .*/no/folder; the hub has it as"):
        find(name, {name: place})


def test_an_unknown_name_is_the_users_error() -> None:
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
    remedy = "; bash utils/prefetch.sh --ds_names oneig gets it"
    assert registry.measurer_missing("csd+se", options) == [
        f"encoders: there is no file of reference vectors for 'csd' at {tmp_path}/gone.pt{remedy}",
        f"encoders: there is no file of reference vectors for 'se' in references['se']{remedy}",
    ]
