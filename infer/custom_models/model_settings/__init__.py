"""The entries of the models that come with the toolkit, and how they are written.

A file has ``SETTINGS``: task -> model name -> entry. A task is ``t2i``, ``edit``, or ``subject`` (subject-driven: the
input list is the subject's name, its images, and the prompt). An entry has

* ``model_path``: hub id, a folder, or the API's model id. A source for the settings stands beside them.
* ``module``, ``class``: import path relative to ``custom_models``; built as ``cls(model_path=..., **model_kwargs)``.
* ``model_kwargs`` (optional): defaults that --custom_model_kwargses overrides by name. Every setting that decides
  pixels stands here, because this is what the fingerprint sees. ``revision`` is the commit of a
  hub ``model_path``; it does not hold for another ``model_path`` of the user's. Where there is none (no commit is
  known), the one that was downloaded first is used from then on.
* ``gpus`` (optional): GPUs of one replica; 0: runs on the CPU. Absent: one where there is one.
* ``api`` (optional): True: only reachable through an API; False: never is; absent: follows USE_API.
* ``patterns`` (optional): which files of ``model_path`` are needed; all when absent.
* ``assets`` (optional): what it needs beyond ``model_path``: see ``imageevalkit.assets``.

A comment beside an entry names the sources of its settings and, where they disagree, the alternatives; the default is
what the model's authors recommend. Words that they recommend (a suffix, a negative prompt) are not copied: the model's
class reads them from the authors' repository at a commit, or from the docstring of the pipeline. Sources: "card" is the
model's page on the hub or its authors' README, "pipeline" the default of diffusers 0.42.1, "TRIG" and "WISE" the
benchmarks' papers. The commits are in pins.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

Settings = dict[str, dict[str, dict[str, Any]]]

_PINS = json.loads((Path(__file__).resolve().parents[1] / "pins.json").read_text(encoding="utf-8"))

# What diffusers reads from a repository that also holds half-precision copies or checkpoints for other programs.
PIPELINE_FILES = (
    "*.json",
    "*/*.txt",
    "*/*.model",
    "*/*.jinja",
    "*/model.safetensors",
    "*/model-*.safetensors",
    "*/diffusion_pytorch_model.safetensors",
    "*/diffusion_pytorch_model-*.safetensors",
)


class HubWeights(NamedTuple):
    """A repository of the hub; ``patterns`` are the needed files, all when empty."""

    hub: str
    patterns: tuple[str, ...] = ()

    @property
    def revision(self) -> str | None:
        """The commit of pins.json; None: none is known, so the newest."""
        commit: str | None = _PINS["hub"].get(self.hub)
        return commit

    def asset(self) -> dict[str, Any]:
        """As a further need of an entry: see ``imageevalkit.assets``."""
        pin = {"revision": self.revision} if self.revision else {}
        return {"hub": self.hub, **pin, "type": "model", "patterns": list(self.patterns)}

    def kwargs(self, part: str, ending: str = "_path") -> dict[str, Any]:
        """As a part of a model: its constructor's arguments ``<part>_path`` and ``<part>_revision``."""
        return {f"{part}{ending}": self.hub, f"{part}_revision": self.revision}


def authors_code(name: str) -> dict[str, Any]:
    """A need of entries: the authors' repository of pins.json that lies in ``custom_models/code/<name>/``."""
    return {**_PINS["code"][name], "to": name}


# Of these an entry and its class, or several entries, speak.
BAGEL = HubWeights("ByteDance-Seed/BAGEL-7B-MoT", ("*.json", "*.txt", "ae.safetensors", "ema.safetensors"))
FLUX_SCHNELL = HubWeights("black-forest-labs/FLUX.1-schnell", PIPELINE_FILES)
OMINICONTROL = HubWeights("Yuanshi/OminiControl", ("omini/subject_512.safetensors",))
# each weight once, and not the safety checker
STABLE_DIFFUSION_1_5 = HubWeights(
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    (
        *("model_index.json", "feature_extractor/*", "scheduler/*", "tokenizer/*", "*/config.json"),
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ),
)
BERT = HubWeights("google-bert/bert-base-uncased", ("vocab.txt", "tokenizer*.json", "config.json"))
CLIP_VIT_L_14 = HubWeights("openai/clip-vit-large-patch14", ("config.json", "model.safetensors"))
# the repository has them thrice
SDXL_VAE = HubWeights("stabilityai/sdxl-vae", ("config.json", "diffusion_pytorch_model.safetensors"))
# no weights: tokenizer and shape
PHI_1_5 = HubWeights("microsoft/phi-1_5", ("*.json", "*.txt"))

SSR_ENCODER_FILES = ("pytorch_model.bin", "pytorch_model_1.bin")
"""The aligner and the layers. They are on no hub."""


def entry(
    of_class: str,
    weights: HubWeights,
    *needs: HubWeights | dict[str, Any],
    gpus: int | None = None,
    **model_kwargs: Any,
) -> dict[str, Any]:
    """An entry: its class (``module.Class`` of model_utils/), ``weights``, what else it ``needs``, and its
    ``model_kwargs``, None of which is left out."""
    module, _, name = of_class.partition(".")
    kwargs = {"revision": weights.revision, **model_kwargs}
    rest: dict[str, Any] = {
        "patterns": list(weights.patterns),
        "assets": [need if isinstance(need, dict) else need.asset() for need in needs],
        "gpus": gpus,
    }
    return {
        "model_path": weights.hub,
        "module": f".model_utils.{module}",
        "class": name,
        "model_kwargs": {name: value for name, value in kwargs.items() if value is not None},
        **{name: value for name, value in rest.items() if value},
    }
