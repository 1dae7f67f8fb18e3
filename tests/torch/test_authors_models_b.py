"""Janus, JanusFlow, Show-o and VILA-U: what reaches their authors' code, and the arithmetic that is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from custom_models.load_model import MODEL_SETTINGS, load_model
from imageevalkit.generate.model import ModelUnusable
from tests.support.authors_code import import_instead, stand_in

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def authors(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    with stand_in(request.param, tmp_path / "code", monkeypatch) as folder:
        yield folder


@pytest.fixture
def weights(tmp_path: Path) -> str:
    folder = tmp_path / "weights"
    folder.mkdir()
    return str(folder)


def build(name: str, weights: str, **kwargs: Any) -> Any:
    """The registered model, with weights that are a folder and without revisions."""
    entry = MODEL_SETTINGS["t2i"][name]
    own = {key: value for key, value in entry["model_kwargs"].items() if not key.endswith("revision")}
    return load_model({**entry, "model_path": weights, "model_kwargs": {**own, **kwargs}})


def pixels(image: Any) -> Any:
    return np.asarray(image)


@pytest.mark.parametrize("authors", ["janus"], indirect=True)
def test_janus_draws_tokens_with_guidance(authors: Path, weights: str) -> None:
    cfg_weight, temperature = 2.0, 4.0
    model = build("janus-1.3b", weights, device="cpu", cfg_weight=cfg_weight, temperature=temperature)
    image = model.generate("a cat", seed=11)
    assert model.model_name == "weights"
    assert model._model.moved == [torch.bfloat16, "cpu"]

    # the same walk without cache, embeddings or tensors' arithmetic: sums of bits modulo 7
    def bits(token: int) -> Any:
        return np.array([token & 1, token >> 1 & 1, token >> 2 & 1])

    ids = [1, *b"User:a cat|Assistant:<start>"]
    sums = [sum(bits(i) for i in row) for row in (ids, [ids[0], *[2] * (len(ids) - 2), ids[-1]])]
    heads = np.array([bits(token) for token in range(16)]).T
    torch.manual_seed(11)
    expected = []
    for _ in range(576):
        conditional, unconditional = (sums[row] % 7 @ heads for row in (0, 1))
        guided = cfg_weight * conditional + (1 - cfg_weight) * unconditional
        logits = torch.tensor(guided, dtype=torch.bfloat16)[None] / temperature
        expected.append(int(torch.multinomial(torch.softmax(logits, -1), 1)))
        sums = [total + bits(expected[-1]) for total in sums]
    assert model._model.gen_vision_model.decoded[0].tolist() == [expected]
    levels = np.array(expected).reshape(24, 24) / 7.5 - 1
    grey = ((levels.astype(np.float32) + 1) / 2 * 255).astype(np.uint8).repeat(16, 0).repeat(16, 1)
    assert (abs(pixels(image).astype(int) - grey[..., None]) <= 1).all() and image.size == (384, 384)
    assert model._model.language_model.calls[0].shape[:2] == (2, len(ids))
    assert all(call.shape[:2] == (2, 1) for call in model._model.language_model.calls[1:])
    assert (pixels(model.generate("a cat", seed=11)) == pixels(image)).all()
    assert (pixels(model.generate("a cat", seed=12)) != pixels(image)).any()


@pytest.mark.parametrize("authors", ["janus"], indirect=True)
def test_janusflow_follows_the_flow(authors: Path, weights: str) -> None:
    cfg_weight, steps = 5.0, 4
    import_instead("diffusers", authors / "diffusers/__init__.py")
    model = build(
        "janusflow-1.3b",
        weights,
        device="cpu",
        cfg_weight=cfg_weight,
        num_inference_steps=steps,
        vae_path=weights,
    )
    image = model.generate("a cat", seed=5)
    ids = [1, *b"User:a cat|Assistant:<gen>"]
    words = np.array(ids[:-1]) / 128
    # velocity of the stand-in: mean of the words seen, plus the time; the unconditional pass sees the first only
    guided = cfg_weight * words.mean() - (cfg_weight - 1) * words[0]
    travelled = sum((guided + step / steps) / steps for step in range(steps))
    torch.manual_seed(5)
    noise = torch.randn(1, 4, 48, 48, dtype=torch.bfloat16).float()
    (decoded,) = model._vae.decoded
    # a hundredth of its largest values, of about 4: bfloat16 keeps 8 bits
    torch.testing.assert_close(decoded.float(), (noise + travelled) / 0.5, atol=0.15, rtol=0)
    calls = model._model.language_model.calls
    assert len(calls) == steps and image.size == (384, 384)
    assert calls[0]["inputs_embeds"].shape[:2] == (2, len(ids) - 1 + 577)
    assert calls[0]["attention_mask"].sum(1).tolist() == [len(ids) - 1 + 577, 1 + 577]
    shown = decoded.float()[0, :3].repeat_interleave(8, 1).repeat_interleave(8, 2).clamp(-1, 1)
    assert (pixels(image) == ((shown + 1) / 2 * 255).to(torch.uint8).permute(1, 2, 0).numpy()).all()


@pytest.mark.parametrize("authors", ["show-o"], indirect=True)
def test_show_o_hands_its_authors_prompts_masks_and_settings(authors: Path, weights: str) -> None:
    import_instead("transformers", authors / "transformers.py")
    model = build("show-o", weights, device="cpu", vq_path=weights, llm_path=weights)
    image = model.generate("a cat", seed=3)
    (call,) = model._model.calls
    assert model._model.llm_model_path == weights
    assert model._prompting.text_tokenizer == {"folder": weights, "padding_side": "left"}
    assert bytes(call["input_ids"][0, :128].tolist()).rstrip(b"\0") == b"a cat"
    assert bytes(call["uncond_input_ids"][0, :128].tolist()).rstrip(b"\0") == b""
    assert call["input_ids"][0, 128:].tolist() == [58497] * 256
    mask = call["attention_mask"]
    assert mask["ids"] == (50295, 50296, 50297) and mask["rm_pad_in_image"]
    assert torch.equal(mask["sequence"], torch.cat([call["input_ids"], call["uncond_input_ids"]]))
    assert (call["guidance_scale"], call["timesteps"], call["temperature"]) == (5.0, 50, 1.0)
    assert call["noise_schedule"] == "the cosine schedule"
    assert call["kwargs"]["seq_len"] == 256 and call["kwargs"]["noise_type"] == "mask"
    assert call["config"].model.showo.codebook_size == 8192
    torch.manual_seed(3)
    tokens = torch.randint(-2000, 10000, (1, 256)).clamp(0, 8191).reshape(16, 16).numpy()
    grey = (tokens / 8191 * 255).repeat(16, 0).repeat(16, 1)
    assert image.size == (256, 256)
    assert (abs(pixels(image)[..., 0] - grey) <= 1).all()


def transformers_of(version: str, code: Path) -> None:
    """A package ``transformers`` of that version, with modules that VILA-U's authors replace."""
    # a folder for each: Python takes a file of the same size and second for the one that it has compiled
    folder = code / "installed" / version / "transformers"
    for module in ("", "generation", "models", "models/llama"):
        (folder / module).mkdir(parents=True, exist_ok=True)
        (folder / module / "__init__.py").write_text(f"__version__ = {version!r}\n")
    for module in ("generation/utils", "models/llama/modeling_llama", "models/llama/tokenization_llama"):
        (folder / f"{module}.py").write_text('WHOSE = "transformers"\n')
    import_instead("transformers", folder / "__init__.py")


@pytest.mark.parametrize("authors", ["vila-u"], indirect=True)
def test_vila_u_runs_on_its_authors_modules_of_transformers(
    authors: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("custom_models.model_utils.loading.best_device", lambda name: name)
    transformers_of("4.41.0", authors.parent)
    with pytest.raises(ModelUnusable, match=r"made for transformers 4\.36\.2.* has 4\.41\.0"):
        build("vila-u-7b-256", weights)
    transformers_of("4.36.2", authors.parent)
    model = build("vila-u-7b-256", weights)
    import vila_u

    assert vila_u.REPLACED == ["authors"] * 3
    image = model.generate("a cat", seed=3)
    assert (model._model.folder, model._model.calls) == (weights, [("a cat", 3.0, 1)])
    torch.manual_seed(3)
    expected = (torch.rand(1, 3, 256, 256) * 255)[0].to(torch.uint8).permute(1, 2, 0).numpy()
    assert (pixels(image) == expected).all()
