"""Subject-driven models of every kind: what they are shown of a subject's name, its images and the prompt."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from custom_models.load_model import MODEL_SETTINGS
from custom_models.model_utils.inputs import split_subject
from custom_models.model_utils.openai_images import OpenAIImagesSubject
from custom_models.model_utils.reference import (
    ReferenceBlankSubject,
    ReferenceNoise,
    ReferenceNoiseSubject,
    ReferenceTypeset,
    ReferenceTypesetSubject,
)
from imageevalkit.generate.model import Generated, ItemFailed
from tests.support.image_server import ImageServer

PHOTO = Image.linear_gradient("L").resize((64, 48)).convert("RGBA")


def test_name_stands_before_the_images_and_the_prompt_after_them() -> None:
    subject = split_subject(["golden", "retriever", PHOTO, "asleep", PHOTO, "on a sofa"])
    assert (subject.name, subject.prompt) == ("golden retriever", "asleep on a sofa")
    assert [image.mode for image in subject.images] == ["RGB", "RGB"]
    assert split_subject([PHOTO, "asleep"]).name == ""


def test_incomplete_item_fails_without_a_request(server: ImageServer) -> None:
    for model in (OpenAIImagesSubject("edit-1"), ReferenceNoiseSubject()):
        with pytest.raises(ItemFailed, match="no image of its subject") as caught:
            model.generate(["dog", "asleep"])
        assert caught.value.attempts == 0
    assert server.requests == []


def test_api_models_are_shown_the_images_and_the_prompt(server: ImageServer) -> None:
    assert MODEL_SETTINGS["subject"]["gpt-image-2"]["class"] == "OpenAIImagesSubject"
    OpenAIImagesSubject("edit-1").generate(["dog", PHOTO, "asleep", PHOTO, "on a sofa"])
    (request,) = server.requests
    assert request.path == "/v1/images/edits"
    assert request.fields["prompt"] == "asleep on a sofa"
    assert len(request.files) == 2


def test_references_make_what_they_make_of_the_prompt_alone() -> None:
    inputs: list[Any] = ["dog", PHOTO, 'a dog with a sign "HELLO"']
    for subject, t2i in (
        (ReferenceNoiseSubject, ReferenceNoise),
        (ReferenceTypesetSubject, ReferenceTypeset),
    ):
        one, other = subject(width=80, height=40).generate(inputs, 3), t2i(width=80, height=40)
        assert one.tobytes() == other.generate('a dog with a sign "HELLO"', 3).tobytes()
    assert ReferenceBlankSubject(width=80, height=40).generate(inputs).size == (80, 40)


# --- BLIP-Diffusion, whose environment has an older diffusers ---


def test_blip_diffusion_draws_the_subject_that_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registered model without its weights: a call that the real pipeline's signature would not take fails."""
    diffusers = pytest.importorskip("diffusers")
    from custom_models.model_utils import diffusers_models
    from custom_models.model_utils.diffusers_special import BlipDiffusion

    signature = inspect.signature(diffusers.BlipDiffusionPipeline.__call__)
    calls: list[dict[str, Any]] = []

    def pipeline(**arguments: Any) -> Any:
        calls.append(signature.bind(None, **arguments).arguments)
        return diffusers.ImagePipelineOutput(images=[Image.new("RGB", (512, 512))])

    monkeypatch.setattr(diffusers_models, "_pipeline_class", lambda *_: diffusers.BlipDiffusionPipeline)
    monkeypatch.setattr(BlipDiffusion, "_load", lambda *_: pipeline)
    entry = MODEL_SETTINGS["subject"]["blip-diffusion"]
    model = BlipDiffusion(str(tmp_path), **{**entry["model_kwargs"], "device": "cpu"})
    assert isinstance(model.generate(["dog", PHOTO, "on a sofa"], 7), Generated)
    (call,) = calls
    assert call["prompt"] == ["on a sofa"]
    assert call["source_subject_category"] == call["target_subject_category"] == ["dog"]
    assert call["reference_image"].mode == "RGB"
    assert (call["num_inference_steps"], call["guidance_scale"], call["width"]) == (25, 7.5, 512)
    assert call["generator"].initial_seed() == 7
    # the words of the example in diffusers' docstring
    assert call["neg_prompt"].startswith("over-exposure")
    with pytest.raises(ItemFailed, match="a subject's name and exactly one image"):
        model.generate([PHOTO, "on a sofa"], 7)


def test_q_former_is_asked_for_with_tokenizer_commit_and_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real files and a real configuration."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    (tmp_path / "bert").mkdir()
    transformers.Blip2Config().save_pretrained(tmp_path / "pipeline" / "qformer")
    asked: list[dict[str, Any]] = []

    def from_pretrained(path: str, config: Any, **arguments: Any) -> str:
        asked.append({"path": path, "tokenizer": config.tokenizer, **arguments})
        return "the Q-Former"

    module = SimpleNamespace(Blip2QFormerModel=SimpleNamespace(from_pretrained=from_pretrained))
    monkeypatch.setitem(sys.modules, "diffusers.pipelines.blip_diffusion.modeling_blip2", module)
    monkeypatch.setitem(sys.modules, "diffusers.pipelines.blip_diffusion", SimpleNamespace())
    from custom_models.model_utils.diffusers_special import BlipDiffusion

    model = BlipDiffusion.__new__(BlipDiffusion)
    model._model_path, model._bert = str(tmp_path / "pipeline"), (str(tmp_path / "bert"), None)
    model.revision = "0" * 40
    model.dtype = {"default": "float16", "qformer": "float32"}
    assert model._load_parts() == {"qformer": "the Q-Former"}
    assert asked == [
        {
            "path": str(tmp_path / "pipeline"),
            "subfolder": "qformer",
            "revision": "0" * 40,
            "torch_dtype": torch.float32,
            "tokenizer": str(tmp_path / "bert"),
        }
    ]
