"""The registry entries of the toolkit's models, and their format.

Each file has ``SETTINGS``: task -> model name -> entry. A task is ``t2i``, ``edit``, or ``subject``
(subject-driven: the input list is the subject's name, its images, and the prompt). An entry has

* ``model_path``: a hub id, a folder, or the API's model id.
* ``module``, ``class``: import path relative to ``custom_models``; built as ``cls(model_path=..., **model_kwargs)``.
* ``model_kwargs`` (optional): defaults that --custom_model_kwargses overrides by name. Every setting that
  affects pixels belongs here, because the fingerprint covers only these. ``revision`` is the commit of a hub
  ``model_path`` and does not apply to another ``model_path`` of the user. Without a ``revision`` the first
  downloaded commit is used from then on.
* ``gpus`` (optional): the number of GPUs of a replica; 0 means CPU. If absent: one GPU if there is one.
* ``api`` (optional): True: only through an API; False: never; absent: follows USE_API.
* ``patterns`` (optional): the needed files of ``model_path``; if absent, all files.
* ``assets`` (optional): needs beyond ``model_path``, see ``imageevalkit.assets``.

A comment beside an entry names the sources of its settings and, if they disagree, the alternatives. The
default is the recommendation of the model's authors. Recommended texts (a suffix, a negative prompt) are not
copied: the model's class reads them from the authors' repository at a commit, or from the pipeline's
docstring. Sources: "card" is the model's page on the hub or its authors' README, "pipeline" the default of
diffusers 0.42.1, "TRIG" and "WISE" are the benchmarks' papers. The commits are in pins.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

Settings = dict[str, dict[str, dict[str, Any]]]

_PINS = json.loads((Path(__file__).resolve().parents[1] / "pins.json").read_text(encoding="utf-8"))

# The files that diffusers reads, without half-precision copies and checkpoints for other programs.
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
    """A repository of the hub. ``patterns`` selects the needed files; empty means all."""

    hub: str
    patterns: tuple[str, ...] = ()

    @property
    def revision(self) -> str | None:
        """The commit in pins.json. None: no commit is known, so the newest one is used."""
        commit: str | None = _PINS["hub"].get(self.hub)
        return commit

    def asset(self) -> dict[str, Any]:
        """Returns the repository as an asset of an entry, see ``imageevalkit.assets``."""
        pin = {"revision": self.revision} if self.revision else {}
        return {"hub": self.hub, **pin, "type": "model", "patterns": list(self.patterns)}

    def kwargs(self, part: str, ending: str = "_path") -> dict[str, Any]:
        """Returns the arguments ``<part>_path`` and ``<part>_revision`` of a model's constructor."""
        return {f"{part}{ending}": self.hub, f"{part}_revision": self.revision}


def authors_code(name: str) -> dict[str, Any]:
    """Returns the asset of an authors' repository in pins.json; its folder is
    ``custom_models/code/<name>/``."""
    return {**_PINS["code"][name], "to": name}


# Weights used by several entries, or by an entry and its class.
BAGEL = HubWeights("ByteDance-Seed/BAGEL-7B-MoT", ("*.json", "*.txt", "ae.safetensors", "ema.safetensors"))
FLUX_SCHNELL = HubWeights("black-forest-labs/FLUX.1-schnell", PIPELINE_FILES)
OMINICONTROL = HubWeights("Yuanshi/OminiControl", ("omini/subject_512.safetensors",))
# each weight once, without the safety checker
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
# the repository has these weights three times
SDXL_VAE = HubWeights("stabilityai/sdxl-vae", ("config.json", "diffusion_pytorch_model.safetensors"))
# only the tokenizer and the configuration, no weights
PHI_1_5 = HubWeights("microsoft/phi-1_5", ("*.json", "*.txt"))

SSR_ENCODER_FILES = ("pytorch_model.bin", "pytorch_model_1.bin")
"""The aligner and the layers. No hub has these files."""


def entry(
    of_class: str,
    weights: HubWeights,
    *needs: HubWeights | dict[str, Any],
    gpus: int | None = None,
    **model_kwargs: Any,
) -> dict[str, Any]:
    """Returns an entry. ``of_class`` is ``module.Class`` in model_utils/; ``weights`` gives the
    ``model_path``; ``needs`` are further weights and assets. A value of None in ``model_kwargs`` is
    omitted."""
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
