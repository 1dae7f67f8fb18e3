"""Metric models against a plain loop, which opens, prepares, encodes and measures image by image."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from eval_models.encoders.clip import HPSv2Encoder
from eval_models.encoders.clip_metrics import AestheticPredictor, ClipScore
from eval_models.encoders.encoder import Encoder
from eval_models.encoders.mask2former import Mask2Former
from eval_models.encoders.style import StyleEncoder
from eval_models.encoders.vqascore import ClipFlanT5XL
from imageevalkit.benchmark.question import Picture, Question, measure
from imageevalkit.common.machine import available_cores
from imageevalkit.judges.api import open_picture
from perf.harness import Row, at_least, at_most
from tests.gpu.architectures import drawn_on
from tests.gpu.part import GIB, Part, free_memory, held
from tests.gpu.ways import Numbers, Work, compare, differences, share
from tests.support import tiny_measurers as saved
from tests.support.image_questions import save_image
from tests.support.tiny_encoders import STYLES, save_csd, save_references, save_se

_OF_PLAIN_LOOP = at_least(1.0)
_IMAGES, _TINY_IMAGES = 64, 2
_SIDE, _TINY_SIDE = 1024, 64
_APART, _HALF_APART, _TINY_APART = 0.2, 0.5, 1e-3
"""Differences of the numbers, as shares of what another image changes. HPSv2's scores are multiples of 1/64."""
_OTHERS = 8
"""The number of images that are also measured in place of another image."""
_ALIKE = 1e-4
"""A share of the largest number. If another image changes less, no comparison of numbers means anything."""
_LONGEST_METRIC, _LONGEST_CHECK = 25.0, 10.0
"""Seconds with which a model, and a check of all models, is started."""
_LEFT_BEHIND = 0.1
"""GiB that the models of a process may leave behind on the GPU: the libraries' workspaces."""
_HALVED = "HPSv2, two ViT-H/14"

# The sizes of the published configurations.
_VIT_L: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 224,
    # with 1 all images look alike
    "initializer_factor": 2.0,
}
_VIT_B: dict[str, Any] = {
    **_VIT_L,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 32,
}
_CLIP_TEXT: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "initializer_factor": 2.0,
}
_T5_XL: dict[str, Any] = {"d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32}
_SWIN_SMALL: dict[str, Any] = {
    "image_size": 224,
    "embed_dim": 96,
    "depths": [2, 2, 18, 2],
    "num_heads": [3, 6, 12, 24],
}
_MASK2FORMER: dict[str, Any] = {
    "feature_size": 256,
    "mask_feature_size": 256,
    "hidden_dim": 256,
    "encoder_feedforward_dim": 1024,
    "encoder_layers": 6,
    "decoder_layers": 10,
    "num_attention_heads": 8,
    "dim_feedforward": 2048,
    "num_queries": 100,
    # few objects, as in a picture
    "confidence": 10,
}
_COLORS, _TEMPLATES = ("red", "blue", "green"), ("a photo of a {{c}} {classname}",)


class Metric(NamedTuple):
    """``save`` writes random weights and returns the encoder; ``texts`` are asked about the images in turn."""

    save: Callable[[Path, bool], Encoder]
    texts: Sequence[str] = ("a red cup", "two dogs on a table")
    is_half: bool = False
    """Whether it computes in half precision on the CPU too."""


def _drawn(tiny: bool, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Large weights are drawn on a GPU, if there is one: on a CPU they take minutes."""
    return drawn_on("cpu" if tiny else "cuda", dtype)


def _clipscore(folder: Path, tiny: bool) -> Encoder:
    sizes: dict[str, Any] = {} if tiny else {"vision": _VIT_B, "text": _CLIP_TEXT, "width": 512}
    # drawn on a GPU, they give only negative similarities, for which CLIPScore is 0; drawn on a CPU, positive ones
    saved.save_clip(folder, **sizes)
    return ClipScore({"clip_vit_b_32": str(folder)})


def _aesthetic(folder: Path, tiny: bool) -> Encoder:
    width = 12 if tiny else 768
    with _drawn(tiny, torch.float32):
        saved.save_clip(folder / "clip", width=width, vision=None if tiny else _VIT_L)
    saved.save_aesthetic(folder / "head.pth", width=width)
    return AestheticPredictor({"aesthetic": str(folder / "head.pth"), "clip_vit_l_14": str(folder / "clip")})


def _hpsv2(folder: Path, tiny: bool) -> Encoder:
    import open_clip

    with _drawn(tiny, torch.float32):
        saved.save_hpsv2(folder, config=None if tiny else open_clip.get_model_config("ViT-H-14"))
    return HPSv2Encoder(weights={"hpsv2": str(folder)})


def _style(folder: Path, tiny: bool) -> Encoder:
    size: dict[str, Any] = {} if tiny else {"width": 1024, "layers": 24, "patch": 14, "size": 224}
    save_csd(folder / "checkpoint.pth", **size)
    with _drawn(tiny, torch.float32):
        save_se(folder / "se", **size)
    weights = {"csd": str(folder / "checkpoint.pth"), "se": str(folder / "se")}
    return StyleEncoder(save_references(folder), weights=weights)


def _vqascore(folder: Path, tiny: bool) -> Encoder:
    sizes: dict[str, Any] = {} if tiny else {"network": _T5_XL, "vision": {**_VIT_L, "image_size": 336}}
    with _drawn(tiny, torch.bfloat16):
        saved.save_clip_flant5(folder / "t5", folder / "tower", **sizes)
    weights = {"clip_flant5_xl": str(folder / "t5"), "clip_vit_l_336": str(folder / "tower")}
    return ClipFlanT5XL("A chat.", weights=weights)


def _mask2former(folder: Path, tiny: bool) -> Encoder:
    import open_clip

    sizes: dict[str, Any] = {} if tiny else {**_MASK2FORMER, "backbone": _SWIN_SMALL}
    classes = [*saved.CLASSES, *(f"thing {n}" for n in range(80 - len(saved.CLASSES)))]
    saved.save_mask2former(folder / "detector", classes=len(classes), **sizes)
    with _drawn(tiny, torch.float32):
        saved.save_open_clip(folder / "clip", config=None if tiny else open_clip.get_model_config("ViT-L-14"))
    weights = {"mask2former": str(folder / "detector"), "geneval_clip": str(folder / "clip")}
    return Mask2Former(classes, _COLORS, _TEMPLATES, weights=weights)


METRICS: dict[str, Metric] = {
    "CLIPScore, ViT-B/32": Metric(_clipscore),
    "aesthetic predictor, ViT-L/14": Metric(_aesthetic, ("",)),
    _HALVED: Metric(_hpsv2),
    "VQAScore, CLIP-FlanT5-XL": Metric(_vqascore, is_half=True),
    "Mask2Former, Swin-S": Metric(_mask2former, ('{"cat": 1}', "{}")),
    "OneIG style, two ViT-L/14": Metric(_style, STYLES),
}


_TINY_METRICS = ("CLIPScore, ViT-B/32", _HALVED, "VQAScore, CLIP-FlanT5-XL")
"""The metric models of ``--tiny``: one of each library, and one in half precision."""


class Loaded(NamedTuple):
    """An encoder with its ``models``, which stay in memory, and questions.

    ``others`` are, at each position of an answer, what another image changes.
    """

    encoder: Encoder
    models: Any
    questions: list[Question]
    others: list[float]


def examine(part: Part) -> None:
    """Examine each metric model, then all of them in this process."""
    count, side = (_TINY_IMAGES, _TINY_SIDE) if part.tiny else (_IMAGES, _SIDE)
    with ThreadPoolExecutor(available_cores()) as threads:
        pictures = list(threads.map(partial(_save, part.folder, side), range(count)))
    loaded: dict[str, Loaded] = {}
    for n, label in enumerate(_TINY_METRICS if part.tiny else METRICS):
        given = (part, label, METRICS[label], part.folder / str(n), pictures, loaded)
        part.attempt(label, _metric, *given, seconds=_LONGEST_METRIC)
    words = f"{_HALVED}: a batch that does not fit is halved, its numbers stay"
    if part.tiny:
        part.skip(words, "no GPU")
    elif _HALVED in loaded:
        part.attempt(words, _halved, part, words, loaded[_HALVED], seconds=_LONGEST_CHECK)
    else:
        part.skip(words, f"{_HALVED} is not loaded")
    words = "several metric models in one process: the numbers of each alone"
    if len(loaded) > 1:
        part.attempt(words, _together, part, loaded, seconds=_LONGEST_CHECK)
    else:
        part.skip(words, f"{len(loaded)} models are loaded")
    patch.stopall()
    loaded.clear()
    free_memory()
    label = "  GPU memory that they leave behind"
    if part.tiny:
        part.skip(label, "no GPU")
    else:
        part.add(Row(label, held() / GIB, at_most(_LEFT_BEHIND), unit=" GiB"))


def _save(folder: Path, side: int, n: int) -> Picture:
    return save_image(folder / f"{n:04d}.png", (side, side), seed=n)


def _metric(
    part: Part,
    label: str,
    metric: Metric,
    folder: Path,
    pictures: Sequence[Picture],
    loaded: dict[str, Loaded],
) -> None:
    folder.mkdir()
    encoder = metric.save(folder, part.tiny)
    texts = itertools.cycle(metric.texts)
    questions = [
        replace(measure("any", picture, text), item=picture.path.stem)
        for picture, text in zip(pictures, texts, strict=False)
    ]
    before = held()
    with _without_random_weights() if label == _HALVED else contextlib.nullcontext():
        models = encoder.load(questions)
    own = held() - before
    # a run loads a model once: its seconds are not those of an image
    patch.object(encoder, "load", return_value=models).start()

    def plain(asked: Sequence[Question]) -> Iterator[Numbers]:
        encoder.models = models
        yield from map(partial(_alone, encoder), asked)

    numbers = list(plain(questions[:_OTHERS]))
    shown = [*pictures[1:], pictures[0]]
    moved = [
        replace(measure("any", picture, question.text), item=picture.path.stem)
        for picture, question in zip(shown, questions[:_OTHERS], strict=False)
    ]
    others = differences(numbers, list(plain(moved)))
    loaded[label] = Loaded(encoder, models, questions, others)
    ours = _asking(encoder)
    both = compare(part, f"{label} / a plain loop", plain, ours, [questions], _OF_PLAIN_LOOP, (own, own))
    limit = _HALF_APART if metric.is_half else _TINY_APART if part.tiny else _APART
    largest = max(abs(number) for answer in numbers for number in answer)
    alike = min(others) <= _ALIKE * largest
    problems = [f"another image changes a number by {min(others):.2g} of {largest:.3g}"] if alike else []
    words = "  largest difference of a number / that of another image"
    figures = {"note": f"another image: {min(others):.2g}"}
    part.add(Row(words, share(differences(*both), others), at_most(limit), figures, problems))


@contextlib.contextmanager
def _without_random_weights() -> Iterator[None]:
    """A block in which torch draws no weights: the CPU takes long to draw those of large models before they load."""
    from torch.nn import init

    names = [name for name in vars(init) if name.endswith("_") and not name.startswith("_")]
    with contextlib.ExitStack() as patches:
        for name in names:
            patches.enter_context(patch.object(init, name, lambda tensor, *_, **__: tensor))
        yield


def _alone(encoder: Encoder, question: Question) -> Sequence[float]:
    """The numbers of one question, as official scripts make them."""
    picture = question.pictures[0]
    image = open_picture(picture._replace(pixels=picture.pixels or encoder.pixels))
    with torch.inference_mode():
        (features,) = encoder.forward([encoder.prepare(image)])
    return _numbers(encoder.measure(question, features))


def _asking(encoder: Encoder) -> Work:
    def ask(asked: Sequence[Question]) -> Iterator[Numbers]:
        answers = {answer.question.item: answer for answer in encoder.ask(asked)}
        for question in asked:
            answer = answers[question.item]
            if answer.text is None:
                raise RuntimeError(f"no number: {answer.error}")
            yield _numbers(json.loads(answer.text))

    return ask


def _numbers(value: Any) -> list[float]:
    """All numbers of a JSON value; of a detector's objects the sum of their confidences."""
    if isinstance(value, dict) and "objects" in value:
        return [sum(one[-1] for objects in value["objects"].values() for one in objects)]
    if isinstance(value, dict):
        return [number for name in sorted(value) for number in _numbers(value[name])]
    return [number for each in value for number in _numbers(each)] if isinstance(value, list) else [value]


def _halved(part: Part, words: str, loaded: Loaded) -> None:
    """Limit the memory of this process to little more than one image needs."""
    encoder, _, questions, others = loaded
    whole = list(_asking(encoder)(questions))
    torch.cuda.reset_peak_memory_stats()
    list(_asking(encoder)(questions[:1]))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.max_memory_reserved() + GIB // 16) / total)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            halved = list(_asking(encoder)(questions))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(said.getvalue(), flush=True)
    problems = [] if "from now on" in said.getvalue() else ["memory did not run out"]
    if share(differences(whole, halved), others) > _APART:
        problems.append("other numbers than with whole batches")
    part.check(words, problems)


def _together(part: Part, loaded: dict[str, Loaded]) -> None:
    """All models answer in turns, an image at a time, as they do alone."""
    asked = {label: each.questions[:2] for label, each in loaded.items()}
    alone = {label: list(_asking(each.encoder)(asked[label])) for label, each in loaded.items()}
    streams = [each.encoder.ask(asked[label]) for label, each in loaded.items()]
    found: dict[str, dict[str, list[float]]] = {label: {} for label in loaded}
    for answers in zip(*streams, strict=True):
        for label, answer in zip(loaded, answers, strict=True):
            found[label][answer.question.item] = _numbers(json.loads(answer.text or "null"))
    limit = _TINY_APART if part.tiny else _APART
    problems = [
        f"{label}: other numbers than alone"
        for label, each in loaded.items()
        if share(
            differences([found[label][question.item] for question in asked[label]], alone[label]), each.others
        )
        > limit
    ]
    note = "" if part.tiny else f"{held() / GIB:.1f} GiB"
    part.check(f"{len(loaded)} metric models in one process: the numbers of each alone", problems, note)
