"""``python -m tests.support.measurer_run FOLDER``: the measurers of GenEval, HPSv2 and GenAI-Bench on small random
networks, and the same numbers by plain calls of their libraries, as JSON.

A process of its own, because the torchvision that open_clip imports must not be seen by any other test.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from PIL import Image

from eval_models.encoders.clip import HPSv2Encoder, resized
from eval_models.encoders.mask2former import Mask2Former
from eval_models.encoders.vqascore import ClipFlanT5
from eval_models.encoders.weights import WEIGHTS
from imageevalkit.benchmark.question import Picture, Question, measure
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
from tests.support.attention import use_plain_attention
from tests.support.tiny_measurers import (
    CLASSES,
    save_clip_flant5,
    save_hpsv2,
    save_mask2former,
    save_open_clip,
)

SIZES = ((300, 200), (64, 91), (96, 96))
COLORS = ("red", "blue", "green")
TEMPLATES = ("a photo of a {{c}} {classname}", "a photo of a {{c}} object")
PROMPT, SYSTEM = "a red cup", "A chat."


def main(folder: Path) -> dict[str, Any]:
    pictures = []
    for n, size in enumerate(SIZES):
        path = folder / f"{n}.png"
        noise = Image.frombytes("RGB", (12, 12), random.Random(n).randbytes(432))
        noise.resize(size, Image.Resampling.BICUBIC).save(path)
        pictures.append(Picture(path, sha256_file(path)))
    return {
        "mask2former": _mask2former(folder, pictures),
        "hpsv2": _hpsv2(folder, pictures),
        "clip_flant5": _clip_flant5(folder, pictures),
        "official": _official(folder),
        "no numbers": _no_numbers(folder, pictures[0]),
        "refused": _refused(folder, pictures[0]),
    }


def _encoders(folder: Path) -> dict[str, Any]:
    """Returns the encoders with the weights in ``folder``."""
    t5 = {"clip_flant5_xxl": str(folder / "t5"), "clip_vit_l_336": str(folder / "tower")}
    detector = {"mask2former": str(folder / "detector"), "geneval_clip": str(folder / "clip")}
    return {
        "hpsv2": HPSv2Encoder(weights={"hpsv2": str(folder / "hpsv2")}, device="cpu"),
        "flant5": ClipFlanT5(SYSTEM, weights=t5, device="cpu"),
        "geneval": Mask2Former(CLASSES, COLORS, TEMPLATES, weights=detector, device="cpu"),
    }


def _official(folder: Path) -> dict[str, list[bool]]:
    """Whether an encoder is official: with the user's own weights, and where the same are the default ones."""
    found = {}
    for name, encoder in _encoders(folder).items():
        found[name] = [encoder.evaluator.official]
        places, encoder.weights = encoder.weights, {}
        del encoder.__dict__["evaluator"], encoder.__dict__["sources"]
        with patch.dict(WEIGHTS, places):
            found[name].append(encoder.evaluator.official)
    return found


def _no_numbers(folder: Path, picture: Picture) -> list[Any]:
    """Text and error of a detector's answer where a tensor of its weights is not finite: it finds nothing then."""
    path, name = folder / "detector/model.safetensors", "class_predictor.weight"
    whole, tensors = path.read_bytes(), _tensors(path)
    tensors[name] = tensors[name] * float("nan")
    _save(tensors, path)
    question = measure("any", picture, json.dumps(dict.fromkeys(CLASSES, 2)))
    [answer] = _encoders(folder)["geneval"].ask([question])
    path.write_bytes(whole)
    return [answer.text, answer.error]


def _said(encoder: Any, questions: list[Question]) -> list[Any]:
    answers = {answer.question.pictures[0].path: answer for answer in encoder.ask(questions)}
    return [json.loads(answers[question.pictures[0].path].text) for question in questions]


def _mask2former(folder: Path, pictures: list[Picture]) -> dict[str, Any]:
    import torch

    save_mask2former(folder / "detector")
    save_open_clip(folder / "clip")
    weights = {"mask2former": str(folder / "detector"), "geneval_clip": str(folder / "clip")}
    asked = json.dumps({"cat": 1, "dog": 2})
    encoder = Mask2Former(CLASSES, COLORS, TEMPLATES, weights=weights, device="cpu", batch_size=2)
    said = _said(encoder, [measure("objects", picture, asked) for picture in pictures])
    gc.collect()
    left = [one.numel() for one in gc.get_objects() if type(one) is torch.Tensor]
    # by hand: what the network says of the first image, and the most confident detection of it
    encoder.models = encoder.load([])
    frame = encoder.prepare(Image.open(pictures[0].path))
    with torch.inference_mode():
        output = encoder.models[0](pixel_values=torch.from_numpy(frame.pixels)[None])
        chances = output.class_queries_logits[0].softmax(-1)[:, :-1]
        best: dict[str, float] = {}
        for query, mask in enumerate(output.masks_queries_logits[0]):
            large = torch.nn.functional.interpolate(mask[None, None], frame.pixels.shape[1:], mode="bilinear")
            logit = torch.nn.functional.interpolate(
                large[..., : frame.size[0], : frame.size[1]], frame.image.size[::-1], mode="bilinear"
            )[0, 0]
            if (logit > 0).any():
                inside = logit.sigmoid()[logit > 0].mean()
                for n, name in enumerate(CLASSES):
                    best[name] = max(best.get(name, 0.0), float(chances[query, n] * inside))
    return {
        "said": said,
        "left": max(left, default=0),
        "input": [list(frame.pixels.shape), list(frame.size)],
        "best": {name: chance for name, chance in best.items() if chance > 0.3},
    }


def _hpsv2(folder: Path, pictures: list[Picture]) -> dict[str, Any]:
    import torch

    save_hpsv2(folder / "hpsv2")
    encoder = HPSv2Encoder(weights={"hpsv2": str(folder / "hpsv2")}, device="cpu", batch_size=2)
    said = _said(encoder, [measure("preference", picture, PROMPT) for picture in pictures])
    model, plain = encoder.load([measure("preference", pictures[0], PROMPT)])["v2.1"][0], []
    with torch.inference_mode():
        text = model._model.encode_text(model._tokenizer([PROMPT]), normalize=True)
        for picture in pictures:
            pixels = resized(Image.open(picture.path), 32, antialias=True)
            plain.append(float(100 * model._model.encode_image(pixels[None], normalize=True) @ text.T))
    whole = [resized(Image.new("RGB", size, "white"), 224, True) for size in ((1024, 768), (1000, 667))]
    white = [one[0, :, 112] > 0 for one in whole]
    return {
        "said": said,
        "plain": plain,
        "shapes": [list(one.shape) for one in whole],
        "rows": [int(rows.sum()) for rows in white],
        "first_row": [int(rows.nonzero()[0]) for rows in white],
    }


def _clip_flant5(folder: Path, pictures: list[Picture]) -> dict[str, Any]:
    import torch

    save_clip_flant5(folder / "t5", folder / "tower")
    weights = {"clip_flant5_xxl": str(folder / "t5"), "clip_vit_l_336": str(folder / "tower")}
    encoder = ClipFlanT5(SYSTEM, weights=weights, device="cpu", batch_size=2)
    said = _said(encoder, [measure("vqascore", picture, "Is it a cup?") for picture in pictures])
    encoder.models = models = encoder.load([])
    token = models.tokenizer
    [path] = [one for one in (folder / "t5").glob("*.bin") if "lm_head.weight" in _tensors(one)]
    head = _tensors(path)["lm_head.weight"].bfloat16()[: len(token)]
    plain = []
    with torch.inference_mode(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
        for picture in pictures:
            (features,) = encoder.forward([encoder.prepare(Image.open(picture.path))])
            ids = [token(f"{SYSTEM} USER: ").input_ids, token("\nIs it a cup? ASSISTANT: ").input_ids]
            parts = [models.network.get_input_embeddings()(torch.tensor(part)) for part in ids]
            embeddings = torch.cat([parts[0], features, parts[1]])[None]
            labels = token("Yes", return_tensors="pt").input_ids
            output = models.network(inputs_embeds=embeddings, labels=labels, output_hidden_states=True)
            logits = (output.decoder_hidden_states[-1][0] @ head.T).float()
            chances = logits.softmax(-1)[torch.arange(labels.shape[1]), labels[0]]
            plain.append(float(chances.prod() ** (1 / labels.shape[1])))
    return {
        "said": said,
        "plain": plain,
        "ends": [part[-1] for part in ids],
        "labels": len(labels[0]),
        "vocabulary": [len(models.network.lm_head.weight), len(head)],
        "patches": list(features.shape),
    }


def _refused(folder: Path, picture: Picture) -> dict[str, str]:
    """Why weights are refused of which a tensor lacks, is one too many or of another shape, by file, tensor and that.

    Each checkpoint is mended before the next is damaged.
    """
    encoders = _encoders(folder)
    found = {}
    for who, file, name, how in (
        ("hpsv2", "hpsv2/HPS_v2.1_compressed.pt", "visual.proj", "shape"),
        ("geneval", "clip/open_clip_model.safetensors", "visual.proj", "lacks"),
        ("geneval", "detector/model.safetensors", "class_predictor.weight", "unexpected"),
        ("flant5", "t5/*.bin", "mm_projector.2.weight", "lacks"),
        ("flant5", "tower/pytorch_model.bin", "vision_model.post_layernorm.weight", "lacks"),
    ):
        [path] = [one for one in sorted(folder.glob(file)) if name in _tensors(one)]
        whole, tensors = path.read_bytes(), _tensors(path)
        if how == "unexpected":
            tensors[f"{name}.more"] = tensors[name]
        else:
            tensor = tensors.pop(name)
            if how == "shape":
                tensors[name] = tensor[:-1].clone()
        _save(tensors, path)
        found[f"{file} {name} {how}"] = _why_not(encoders[who], picture)
        path.write_bytes(whole)
    return found


def _why_not(encoder: Any, picture: Picture) -> str:
    try:
        list(encoder.ask([measure("any", picture, PROMPT)]))
    except CellFailure as error:
        return str(error)
    return ""


def _tensors(path: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        return dict(load_file(path))
    saved = torch.load(path, weights_only=True)
    return dict(saved.get("state_dict", saved))


def _save(tensors: dict[str, Any], path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    if path.suffix == ".safetensors":
        # two names of one tensor are two there
        save_file({name: one.clone() for name, one in tensors.items()}, path, {"format": "pt"})
    else:
        torch.save({"state_dict": tensors} if path.parent.name == "hpsv2" else tensors, path)


if __name__ == "__main__":
    use_plain_attention()
    print(json.dumps(main(Path(sys.argv[1]))))
