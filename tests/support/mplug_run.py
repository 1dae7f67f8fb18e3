"""``python -m tests.support.mplug_run FOLDER``: what mPLUG says of some images, by us and by plain calls of
ModelScope's network as its pipeline makes them, as JSON.

A process of its own, because its transformers must not be seen by any other test.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from modelscope.models.multi_modal.mplug import MPlug as Network
from PIL import Image
from torchvision import transforms
from transformers import BertTokenizer

from eval_models.encoders.encoder import CLIP_MEAN, CLIP_STD
from eval_models.encoders.weights import WEIGHTS
from eval_models.mplug import MPlug
from imageevalkit.benchmark.question import Picture, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from tests.support.tiny_measurers import save_mplug

SIZES = ((300, 200), (64, 91), (96, 96))
QUESTIONS = (
    "Is there a dog?",
    "what color is the cat",
    # more words than are read, which differ beyond that
    "is the cup left of the dog on the cat in the red blue cup of two cat ? a dog on the right of two red dog",
    "is the cup left of the dog on the cat in the red blue cup of two cat ? a dog on the right of no no no no",
)


def main(folder: Path) -> dict[str, Any]:
    # of so small a network several only wait for each other
    torch.set_num_threads(1)
    pictures = []
    turned = Image.Exif()
    turned[0x112] = 6
    for n, size in enumerate(SIZES):
        path = folder / f"{n}.png"
        noise = Image.frombytes("RGB", (12, 12), random.Random(n).randbytes(432))
        # to Pillow alone, which is what the official program opens files with, that changes nothing
        noise.resize(size, Image.Resampling.BICUBIC).save(path, exif=turned)
        pictures.append(Picture(path, sha256_file(path), plain=False))
    return {**_said(folder, pictures), "damaged": _damaged(folder, pictures)}


def _said(folder: Path, pictures: list[Picture]) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        save_mplug(folder)
        network = Network.from_pretrained(str(folder)).eval()
    passes = [0, 0]
    tokenizer = BertTokenizer.from_pretrained(str(folder))
    see = transforms.Compose(
        [
            transforms.Resize((64, 64), interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.ToTensor(),
            transforms.Normalize(CLIP_MEAN, CLIP_STD),
        ]
    )
    questions = [
        measure(f"question/{n}", picture, text).of_item(picture.path.name)
        for picture in pictures
        for n, text in enumerate(QUESTIONS)
    ]
    theirs = []
    with torch.no_grad(), counted(passes, 1):
        for question in questions:
            pixels = see(Image.open(question.pictures[0].path))[None]
            tokens = tokenizer(
                question.text.lower(),
                padding="max_length",
                truncation=True,
                max_length=25,
                return_tensors="pt",
            )
            found, _ = network(pixels, tokens, train=False)
            theirs.append(network.tokenizer.decode(found[0][0], skip_special_tokens=True))
    encoder = MPlug({"mplug": str(folder)}, "cpu", batch_size=2)
    with counted(passes, 0):
        answers = {
            (answer.question.item, answer.question.name): answer.text for answer in encoder.ask(questions)
        }
    return {
        "ours": [json.loads(answers[question.item, question.name] or "null") for question in questions],
        "theirs": theirs,
        "images": passes,
        "official": [_by_default(folder).evaluator.official, encoder.evaluator.official],
    }


def _by_default(folder: Path) -> MPlug:
    """Returns the answers with the weights in ``folder`` as the default weights; their name is unchanged."""
    encoder = MPlug(device="cpu")
    with patch.dict(WEIGHTS, {"mplug": str(folder)}):
        _ = encoder.evaluator
    return encoder


@contextlib.contextmanager
def counted(passes: list[int], place: int) -> Any:
    """A block in which ``passes[place]`` counts the images that go through the image encoder."""
    from modelscope.models.multi_modal.mplug.clip.clip import VisualTransformer

    def note(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, VisualTransformer):
            passes[place] += len(output)

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


def _damaged(folder: Path, pictures: list[Picture]) -> str:
    """Why a checkpoint without one of the tensors is refused."""
    path = folder / "pytorch_model.bin"
    state = torch.load(path, weights_only=True)
    del state["model"]["fusion_encoder.encoder.layer.1.output.dense.weight"]
    torch.save(state, path)
    try:
        list(MPlug({"mplug": str(folder)}, "cpu").ask([measure("question/1", pictures[0], "a dog?")]))
    except CellFailure as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
