"""LLM2CLIP on tiny random weights: against the official code, against plain torch, and alone against in batches."""

from __future__ import annotations

import gc
import json
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
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
    text_features,
    tokenize,
)
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Answer, Encoding, Picture, Question
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import sha256_file
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
    """Saved checkpoints, and questions about JPEG images of odd sizes, each image about each text."""

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


def test_a_texts_vector_has_the_same_bits_whatever_else_is_asked(tiny: Tiny) -> None:
    import torch

    together = encode_texts([*TEXTS, *ODD_TEXTS, *TEXTS], tiny.text_source, "cpu")
    assert list(together) == [*TEXTS, *ODD_TEXTS]
    for text in TEXTS:
        alone = encode_texts([text], tiny.text_source, "cpu")[text]
        assert torch.equal(alone.official, together[text].official)
        assert torch.equal(alone.exact, together[text].exact)


@pytest.mark.parametrize("text", [*TEXTS, *ODD_TEXTS])
def test_tokens_are_the_official_ones(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    official = official_llm2vec(tiny.weights["llm2clip_text"], monkeypatch)
    wrapped = official.prepare_for_tokenization(official._convert_to_str("", text))
    features = official.tokenize([wrapped])
    ids, pooled = tokenize(load_tokenizer(tiny.text_source), text)
    assert ids == features["input_ids"][0].tolist()
    assert pooled == int(features["embed_mask"].sum())


def test_a_long_text_is_cut_on_the_right_with_its_end(tiny: Tiny) -> None:
    tokenizer = load_tokenizer(tiny.text_source)
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    (short, _), (long, pooled) = (tokenize(tokenizer, "the pot " * times) for times in (3, 700))
    assert short[0] == long[0] == tokenizer.bos_token_id
    assert short[-1] == end != long[-1]
    assert len(long) == pooled == 512


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
    import torch
    from transformers import CLIPImageProcessorPil

    plain = Plain.load(torch.bfloat16)
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


def test_exact_scores_are_plain_float32s(tiny: Tiny, replies: Mapping[tuple[str, str], Answer]) -> None:
    import numpy as np
    import torch

    plain = Plain.load(torch.float32)
    vectors = encode_texts(TEXTS, tiny.text_source, "cpu")
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    for item, path in tiny.jpegs.items():
        image: Image.Image = Image.open(path)
        ratio = SIDE / min(image.size)
        image = image.resize((int(image.width * ratio), int(image.height * ratio)), Image.Resampling.BICUBIC)
        left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
        values = (np.asarray(image)[top : top + SIDE, left : left + SIDE] / 255 - mean) / std
        with torch.inference_mode():
            features = plain.vision(torch.tensor(values).permute(2, 0, 1)[None].float()).image_embeds
            for text in TEXTS:
                expected = torch.cosine_similarity(features, plain.adapter(vectors[text].exact))
                assert cosines(replies, "exact")[item, text] == pytest.approx(expected.item(), abs=1e-5)


def test_official_scores_are_those_of_autocast(replies: Mapping[tuple[str, str], Answer]) -> None:
    import torch

    official, exact = cosines(replies, "official"), cosines(replies, "exact")
    assert len({round(value, 2) for value in exact.values()}) > 3
    for key, value in official.items():
        assert value == torch.tensor(value).bfloat16().item() != exact[key]
        assert value == pytest.approx(exact[key], abs=0.02)


def test_only_the_official_half_computes_under_autocast(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU bfloat16 weights give the same without it, on a GPU they do not."""
    import torch

    seen = set()

    def spy(name: str) -> None:
        real = getattr(llm2clip, name)

        def method(model: Any, values: Any) -> Any:
            features = real(model, values)
            seen.add((name, torch.is_autocast_enabled("cpu"), features.dtype))
            return features

        monkeypatch.setattr(llm2clip, name, method)

    for name in ("image_features", "text_features"):
        spy(name)
    answers(tiny.weights, tiny.questions[:1])
    assert seen == {
        (name, autocast, dtype)
        for name in ("image_features", "text_features")
        for autocast, dtype in ((True, torch.bfloat16), (False, torch.float32))
    }


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


def test_a_corrupt_image_costs_only_its_own_answer(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "corrupt.png"
    path.write_bytes(b"no image")
    broken = ask_about(Picture(path, sha256_file(path), encoding=Encoding("JPEG")), TEXTS[0])
    found = answers(tiny.weights, [tiny.questions[0], broken])
    assert found["0", TEXTS[0]].text
    answer = found["corrupt", TEXTS[0]]
    assert answer.text is None and answer.error.startswith("unreadable image")


def test_pickled_weights_answer_as_the_others_do(
    tiny: Tiny, tmp_path: Path, replies: Mapping[tuple[str, str], Answer]
) -> None:
    save_clip(tmp_path / "vision", pickled=True)
    weights = {**tiny.weights, "llm2clip_vision": str(tmp_path / "vision")}
    question = tiny.questions[0]
    key = question.item, question.text
    found = answers(weights, [question])
    assert cosines(found, "exact")[key] == pytest.approx(cosines(replies, "exact")[key], abs=1e-5)


def test_a_cpu_computes_in_another_precision_than_the_official_code(tiny: Tiny) -> None:
    encoder = Llm2ClipEncoder(tiny.weights, "cpu")
    assert encoder.identity["precision"]["official"] == "bfloat16"
    assert not encoder.is_official


def test_the_identity_names_weights_and_precisions_and_no_place(tiny: Tiny, tmp_path: Path) -> None:
    identity = Llm2ClipEncoder(tiny.weights, "cpu").identity
    assert json.loads(json.dumps(identity)) == identity
    assert identity["precision"] == {"weights": "bfloat16", "official": "bfloat16", "exact": "float32"}
    assert str(Path(tiny.weights["llm2clip_text"]).parent) not in json.dumps(identity)

    def change(state: dict[str, Any]) -> None:
        state["text_adapter.adaptor.0.fn.0.bias"] += 1

    save_clip(tmp_path / "vision", change)
    other = {**tiny.weights, "llm2clip_vision": str(tmp_path / "vision")}
    changed = Llm2ClipEncoder(other, "cpu").identity
    assert changed["weights"]["llm2clip_vision"] != identity["weights"]["llm2clip_vision"]
    assert changed["weights"]["llm2clip_text"] == identity["weights"]["llm2clip_text"]


def _renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for name in [name for name in state if old in name]:
            state[name.replace(old, new)] = state.pop(name)

    return change


def _without(part: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for name in [name for name in state if part in name]:
            del state[name]

    return change


def _wider(name: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        state[name] = state[name].repeat_interleave(2, 0)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("adaptor.1.fn.3.bias"), ["it lacks text_adapter.adaptor.1.fn.3.bias;"]),
        (_without("layers.1.mlp"), ["it lacks vision_model.encoder.layers.1.mlp.fc1.bias", "and 1 more"]),
        (_renamed("text_adapter.adaptor.", "text_projection."), ["it has unexpected text_proj"]),
        (_renamed("adaptor.0.ln", "adaptor.0.norm"), ["it has unexpected text_adapter.adaptor.0.norm.bias"]),
        (_without("text_adapter."), ["it lacks text_adapter.adaptor.0.fn.0.bias", "and 7 more"]),
        (
            _renamed("adaptor.3.bias", "adaptor.7.bias"),
            ["lacks", "has unexpected text_adapter.adaptor.7.bias"],
        ),
        (_without("visual_projection"), ["it lacks visual_projection.weight"]),
        (_wider("text_adapter.adaptor.4.bias"), ["it has another shape of text_adapter.adaptor.4.bias;"]),
        (
            _wider("vision_model.post_layernorm.bias"),
            ["another shape of vision_model.post_layernorm.bias"],
        ),
    ],
)
def test_weights_of_another_model_are_one_line(
    tiny: Tiny, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: Sequence[str]
) -> None:
    save_clip(tmp_path / "vision", change)
    weights = {**tiny.weights, "llm2clip_vision": str(tmp_path / "vision")}
    line = _failure(lambda: answers(weights, tiny.questions[:1]))
    for words in said:
        assert words in line


def test_the_adapter_may_be_of_another_depth_and_width(tmp_path: Path) -> None:
    import torch

    def change(state: dict[str, Any]) -> None:
        _without("adaptor.2.")(state)
        _renamed("adaptor.3.", "adaptor.2.")(state)
        _renamed("adaptor.4.", "adaptor.3.")(state)
        for name, columns in (("fn.0.weight", False), ("fn.0.bias", False), ("fn.3.weight", True)):
            tensor = state[f"text_adapter.adaptor.0.{name}"]
            state[f"text_adapter.adaptor.0.{name}"] = (tensor[:, :40] if columns else tensor[:40]).clone()

    save_clip(tmp_path / "vision", change)
    _, adapter = load_llm2clip(WeightsSource(str(tmp_path / "vision"), None, {}), "cpu")
    with torch.inference_mode():
        assert text_features(adapter, torch.ones(2, WIDTH).bfloat16()).shape == (2, FEATURES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_without("layers.1.mlp.up_proj"), "lacks layers.1.mlp.up_proj.weight"),
        (_renamed("q_proj", "query"), "has unexpected layers.0.self_attn.query.weight"),
        (_wider("norm.weight"), "has another shape of norm.weight"),
    ],
)
def test_an_llm_with_random_parts_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    save_llama(tmp_path / "text", change)
    line = _failure(lambda: load_llama(WeightsSource(str(tmp_path / "text"), None, {}), "cpu"))
    assert "text does not hold the weights of its model: it" in line and said in line


def test_an_llm_of_another_width_than_the_adapter_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        for name in [name for name in state if name.startswith("text_adapter")]:
            del state[name]
        for name, shape in (("0.fn.0", (8, 16)), ("0.fn.3", (16, 8)), ("2", (FEATURES, 16))):
            state[f"text_adapter.adaptor.{name}.weight"] = torch.zeros(shape)
            state[f"text_adapter.adaptor.{name}.bias"] = torch.zeros(shape[0])
        for name in ("0.ln", "1"):
            state[f"text_adapter.adaptor.{name}.weight"] = torch.ones(16)
            state[f"text_adapter.adaptor.{name}.bias"] = torch.zeros(16)

    import torch

    save_clip(tmp_path / "vision", change)
    weights = {**tiny.weights, "llm2clip_vision": str(tmp_path / "vision")}
    line = _failure(lambda: answers(weights, tiny.questions))
    assert "have 64 numbers, LLM2CLIP's adapter takes 16: the two do not match" in line


@pytest.mark.parametrize(
    ("name", "lacking"), [("llm2clip_vision", "pytorch_model.bin"), ("llm2clip_text", "tokenizer")]
)
def test_a_folder_without_a_checkpoint_is_one_line(
    tiny: Tiny, tmp_path: Path, name: str, lacking: str
) -> None:
    line = _failure(lambda: answers({**tiny.weights, name: str(tmp_path)}, tiny.questions))
    assert str(tmp_path) in line and lacking in line


def _failure(attempt: Callable[[], Any]) -> str:
    """The one line in which ``attempt`` fails."""
    with pytest.raises(CellFailure) as failure:
        attempt()
    line = str(failure.value)
    assert line.startswith("encoders: ") and "\n" not in line
    return line


def _angle(a: Any, b: Any) -> float:
    import torch

    return float(1 - torch.cosine_similarity(a, b, dim=0))


class Plain(NamedTuple):
    """LLM2CLIP in torch's own modules, with bfloat16's weights; its norms are float32's, as autocast has them."""

    vision: Any
    adapter: Any

    @classmethod
    def load(cls, dtype: Any) -> Plain:
        import torch
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        state = {name: tensor.bfloat16().float() for name, tensor in clip_state().items()}
        config = CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=SIDE,
            patch_size=14,
            projection_dim=FEATURES,
        )
        vision = CLIPVisionModelWithProjection(config)
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
                module.to(dtype)
        adapter.eval()
        return cls(
            vision.eval().to(dtype),
            lambda vectors: adapter(vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)),
        )
