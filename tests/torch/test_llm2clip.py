"""LLM2CLIP on tiny random weights: against the official code, against plain torch, and alone against in batches."""

from __future__ import annotations

import gc
import json
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from eval_models.encoders import llm2clip
from eval_models.encoders.llm2clip import (
    Llm2ClipEncoder,
    encode_texts,
    last_states,
    load_llama,
    load_llm2clip,
    load_tokenizer,
    tokenize,
)
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Answer, Encoding, Question
from imageevalkit.common.errors import CellFailure
from tests.support.image_questions import ask_about, save_image
from tests.support.official_llm2clip import official_llm2vec, official_similarities
from tests.support.tiny_llm2clip import (
    FEATURES,
    SIDE,
    WIDTH,
    clip_state,
    save_clip,
    save_llama,
    save_llm2clip,
    vision_config,
)

TEXTS = (
    "Water boils at one hundred degrees.",
    "  A right triangle\nwith sides three, four and five; its angles sum to 180 degrees. \n",
    "steam",
)
ODD_TEXTS = (
    "",
    " \n ",
    "\n\nnew lines first",
    "水在一百度沸腾。",
    "before !@#$%^&*() after",
    "the pot " * 700,  # far more than 512 tokens
    "x " * 253,  # 512 tokens with its turn, a little more or less
)


pytestmark = pytest.mark.usefixtures("one_thread")


class Tiny(NamedTuple):
    """Questions about JPEG images of odd sizes, each image about each text."""

    weights: Mapping[str, str]
    questions: Sequence[Question]
    jpegs: Mapping[str, Path]

    @property
    def text_source(self) -> WeightsSource:
        return WeightsSource(self.weights["llm2clip_text"], None, {})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("llm2clip")
    pictures, jpegs = [], {}
    for seed, size in enumerate([(57, 44), (30, 91), (28, 28), (64, 33)]):
        picture = save_image(folder / f"{seed}.png", size, seed)
        pictures.append(picture._replace(encoding=Encoding("JPEG")))
        jpegs[str(seed)] = folder / f"{seed}.jpg"
        Image.open(picture.path).convert("RGB").save(jpegs[str(seed)])
    questions = [ask_about(picture, text) for picture in pictures for text in TEXTS]
    return Tiny(save_llm2clip(folder / "weights"), questions, jpegs)


def answers(
    weights: Mapping[str, str], questions: Sequence[Question], batch_size: int = 32
) -> dict[tuple[str, str], Answer]:
    """By item and text."""
    encoder = Llm2ClipEncoder(weights, "cpu", batch_size)
    found = {(answer.question.item, answer.question.text): answer for answer in encoder.ask(questions)}
    assert len(found) == len(questions)
    return found


def cosines(found: Mapping[tuple[str, str], Answer], kind: str) -> dict[tuple[str, str], float]:
    return {key: json.loads(answer.text)[kind] for key, answer in found.items() if answer.text}


@pytest.fixture(scope="module")
def replies(tiny: Tiny) -> dict[tuple[str, str], Answer]:
    return answers(tiny.weights, tiny.questions)


def test_the_first_token_sees_the_last_one(tiny: Tiny) -> None:
    import torch

    model = load_llama(tiny.text_source, "cpu").float()
    with torch.inference_mode():
        one, other = ([1, 2, 3, 4, last] for last in (5, 6))
        changed = last_states(model, one)[0] - last_states(model, other)[0]
        # what transformers makes of the same model without a mask, or with a two-dimensional one
        causal = [model(input_ids=torch.tensor([ids])).last_hidden_state[0, 0] for ids in (one, other)]
    assert changed.abs().max() > 0.01
    assert torch.equal(*causal)


def test_text_vectors_are_the_official_ones(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    folder = tiny.weights["llm2clip_text"]
    found = encode_texts([*TEXTS, *ODD_TEXTS], tiny.text_source, "cpu")
    official = official_llm2vec(folder, monkeypatch)
    causal = official_llm2vec(folder, monkeypatch, causal=True)
    for text, vectors in found.items():
        expected = official.encode([text], convert_to_tensor=True)[0]
        other = causal.encode([text], convert_to_tensor=True)[0]
        assert vectors.official.dtype == expected.dtype == torch.float32
        # bfloat16 states by another kernel of attention
        assert _angle(vectors.official[0], expected) < 1e-3
        assert _angle(vectors.exact[0], expected) < 1e-3
        assert _angle(vectors.official[0], other) > 0.02


def test_scores_are_the_official_methods(
    tiny: Tiny, replies: Mapping[tuple[str, str], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import CLIPImageProcessorPil

    plain = Plain.load()
    vectors = encode_texts(TEXTS, tiny.text_source, "cpu")
    whole = official_llm2vec(tiny.weights["llm2clip_text"], monkeypatch)
    for text in TEXTS:
        # the LLM's states of the same kernel of attention, and the official ones, which differ by bfloat16's steps
        same = types.SimpleNamespace(encode=lambda texts, **_: vectors[texts[0]].official)
        expected, roughly = (
            official_similarities(
                list(tiny.jpegs.values()),
                text,
                llm2vec=llm,
                processor=CLIPImageProcessorPil(
                    size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
                ),
                image_features=lambda pixels: plain.vision(pixels).image_embeds,
                text_features=plain.adapter,
            )
            for llm in (same, whole)
        )
        found = [cosines(replies, "official")[item, text] for item in tiny.jpegs]
        assert found == expected
        assert found == pytest.approx(roughly, abs=0.01)
        exact = [cosines(replies, "exact")[item, text] for item in tiny.jpegs]
        assert exact == pytest.approx(found, abs=0.02) and exact != found


def test_one_by_one_is_as_in_batches(tiny: Tiny, replies: Mapping[tuple[str, str], Answer]) -> None:
    alone = {}
    for question in tiny.questions[:: len(TEXTS) + 1]:
        alone.update(answers(tiny.weights, [question], batch_size=1))
    for kind, close in (("exact", 1e-5), ("official", 0.005)):
        expected = cosines(alone, kind)
        found = cosines(replies, kind)
        assert {key: found[key] for key in expected} == pytest.approx(expected, abs=close)


def test_each_text_and_each_image_is_encoded_once_and_the_llm_is_gone_before_the_images(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Sequence[int]] = []
    llms: list[weakref.ref[Any]] = []
    images: list[int] = []
    freed: list[bool] = []

    def states(model: Any, ids: Sequence[int]) -> Any:
        llms.append(weakref.ref(model))
        encoded.append(ids)
        return last_states(model, ids)

    def free() -> None:
        gc.collect()
        # what is still referred to now keeps its GPU memory
        freed.append(bool(llms) and all(llm() is None for llm in llms))

    def load(source: WeightsSource, device: str) -> Any:
        assert freed == [True]
        return load_llm2clip(source, device)

    def forward(models: Any, batch: list[Any]) -> Any:
        images.append(len(batch))
        return real_forward(models, batch)

    real_forward = Llm2ClipEncoder.forward
    monkeypatch.setattr(llm2clip, "last_states", states)
    monkeypatch.setattr(llm2clip, "free_memory", free)
    monkeypatch.setattr(llm2clip, "load_llm2clip", load)
    monkeypatch.setattr(Llm2ClipEncoder, "forward", forward)
    answers(tiny.weights, tiny.questions, batch_size=3)
    assert len(encoded) == len({*map(tuple, encoded)}) == len(TEXTS)
    assert images == [3, 1]


def test_tokens_are_the_official_ones(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    official = official_llm2vec(tiny.weights["llm2clip_text"], monkeypatch)
    tokenizer = load_tokenizer(tiny.text_source)
    for text in (*TEXTS, *ODD_TEXTS):
        features = official.tokenize([official.prepare_for_tokenization(official._convert_to_str("", text))])
        ids, pooled = tokenize(tokenizer, text)
        assert ids == features["input_ids"][0].tolist()
        assert pooled == int(features["embed_mask"].sum())


def test_the_identity_names_weights_and_precisions_and_no_place(tiny: Tiny, tmp_path: Path) -> None:
    encoder = Llm2ClipEncoder(tiny.weights, "cpu")
    identity = encoder.identity
    assert json.loads(json.dumps(identity)) == identity
    assert identity["precision"] == {"weights": "bfloat16", "official": "bfloat16", "exact": "float32"}
    assert not encoder.is_official, "a GPU computes the official half in half precision"
    assert str(Path(tiny.weights["llm2clip_text"]).parent) not in json.dumps(identity)

    def change(state: dict[str, Any]) -> None:
        state["text_adapter.adaptor.0.fn.0.bias"] += 1

    save_clip(tmp_path / "vision", change)
    changed = Llm2ClipEncoder({**tiny.weights, "llm2clip_vision": str(tmp_path / "vision")}, "cpu").identity
    assert changed["weights"]["llm2clip_vision"] != identity["weights"]["llm2clip_vision"]
    assert changed["weights"]["llm2clip_text"] == identity["weights"]["llm2clip_text"]


def test_weights_that_are_not_those_of_the_model_are_one_line(tiny: Tiny, tmp_path: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        del state["text_adapter.adaptor.1.fn.3.bias"]

    def change_llm(state: dict[str, Any]) -> None:
        del state["layers.1.mlp.up_proj.weight"]

    save_clip(tmp_path / "vision", change)
    save_llama(tmp_path / "text", change_llm)
    (tmp_path / "empty").mkdir()
    for name, folder, said in (
        ("llm2clip_vision", "vision", "it lacks text_adapter.adaptor.1.fn.3.bias;"),
        ("llm2clip_text", "text", "it lacks layers.1.mlp.up_proj.weight"),
        ("llm2clip_vision", "empty", "pytorch_model.bin"),
    ):
        with pytest.raises(CellFailure) as failure:
            answers({**tiny.weights, name: str(tmp_path / folder)}, tiny.questions[:1])
        line = str(failure.value)
        assert line.startswith("encoders: ") and "\n" not in line and said in line and folder in line


def _angle(a: Any, b: Any) -> float:
    import torch

    return float(1 - torch.cosine_similarity(a, b, dim=0))


class Plain(NamedTuple):
    """LLM2CLIP in torch's own modules, with bfloat16's weights; its norms are float32's, as autocast has them."""

    vision: Any
    adapter: Any

    @classmethod
    def load(cls) -> Plain:
        import torch
        from transformers import CLIPVisionModelWithProjection

        state = {name: tensor.bfloat16().float() for name, tensor in clip_state().items()}
        vision = CLIPVisionModelWithProjection(vision_config())
        vision.load_state_dict({name: state[name] for name in vision.state_dict()})

        class Block(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                wide = 2 * WIDTH
                self.fn = torch.nn.Sequential(
                    torch.nn.Linear(WIDTH, wide),
                    torch.nn.GELU(),
                    torch.nn.Dropout(),
                    torch.nn.Linear(wide, WIDTH),
                )
                self.ln = torch.nn.LayerNorm(WIDTH)

            def forward(self, values: Any) -> Any:
                return self.fn(self.ln(values)) + values

        adapter = torch.nn.Sequential(
            Block(), Block(), Block(), torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, FEATURES)
        )
        prefix = "text_adapter.adaptor."
        adapter.load_state_dict({n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)})
        for module in adapter.modules():
            if isinstance(module, torch.nn.Linear):
                module.to(torch.bfloat16)
        adapter.eval()
        return cls(
            vision.eval().to(torch.bfloat16),
            lambda vectors: adapter(vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)),
        )
