"""``python -m tests.support.dreamsim_run FOLDER``: the real package and our encoder on the same images, as JSON.

A process of its own, because the package's torchvision must not be seen by any other test. No connection is allowed.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from eval_models.encoders.dreamsim import DreamSimEncoder, _lora_not_loaded
from imageevalkit.benchmark.question import Encoding, Message, Picture, Question, Sampling
from tests.support.image_questions import save_image
from tests.support.tiny_dreamsim import save_dreamsim

SIZES = ((300, 200), (64, 91), (224, 224))
PAIRS = ((0, 1), (2, 0))


def main(folder: Path) -> dict[str, Any]:
    """Prints the encoder's answers by item, and the package's distances of pairs of images."""
    weights = folder / "weights"
    save_dreamsim(weights)
    pictures = [save_image(folder / f"{seed}.png", size, seed) for seed, size in enumerate(SIZES)]
    questions = [_about(picture) for picture in [*pictures, pictures[0]]]
    encoder = DreamSimEncoder({"dreamsim": str(weights)}, "cpu", batch_size=2)
    before = sorted(weights.rglob("*"))
    said = {
        "identity": encoder.evaluator.details["encoder"],
        "replies": [[answer.question.item, answer.error or answer.text] for answer in encoder.ask(questions)],
    }
    said["identity_after"] = DreamSimEncoder({"dreamsim": str(weights)}, "cpu").evaluator.details["encoder"]
    said["added"] = sorted(p.name for p in {*weights.rglob("*")} - {*before} if "__pycache__" not in str(p))
    return said | _package(weights, pictures)


def _about(picture: Picture) -> Question:
    sent = picture._replace(encoding=Encoding("JPEG"))
    return Question("embedding", (Message("user", (sent,)),), Sampling(max_tokens=1), item=picture.path.stem)


def _package(weights: Path, pictures: list[Picture]) -> dict[str, Any]:
    """Distances one pair at a time, as the official code asks for them, and how its input differs from ours."""
    from dreamsim import dreamsim

    # it leaves files there
    copied = weights.with_name("copied")
    shutil.copytree(weights, copied)
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, preprocess = dreamsim(pretrained=True, device="cpu", cache_dir=str(copied))
    jpegs = []
    for picture in pictures:
        path = picture.path.with_suffix(".jpg")
        Image.open(picture.path).convert("RGB").save(path)
        jpegs.append(Image.open(path))
    inputs = [preprocess(jpeg) for jpeg in jpegs]
    ours = [DreamSimEncoder().prepare(jpeg.convert("RGB")) for jpeg in jpegs]
    return {
        "distances": [[i, j, model(inputs[i], inputs[j]).item()] for i, j in PAIRS],
        "lacking": _without_half_of_the_lora(model, copied / "ensemble_lora"),
        "same_pixels": all(
            bool((one[0].numpy() == other).all()) for one, other in zip(inputs, ours, strict=True)
        ),
    }


def _without_half_of_the_lora(model: Any, folder: Path) -> list[str]:
    """Returns the finding of our check for an adapter file with only the first of each two matrices."""
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "lora_A" in name}, path)
    return sorted(_lora_not_loaded(model, folder, "cpu"))


def _leave(_: Any) -> None:
    return


def _refuse(*_: Any) -> None:
    raise AssertionError("a connection to another machine was attempted")


if __name__ == "__main__":
    import torch

    socket.socket.connect = _refuse  # type: ignore[method-assign]
    # every weight is loaded; to draw a hundred million numbers first takes seconds each time
    torch.nn.Linear.reset_parameters = _leave
    # more of them only wait for the machine's other tests
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]))))
