"""How an entry of a model that diffusers or transformers loads by itself is written: the environment ``diffusers``.

A comment beside an entry names the sources of its settings and, where they disagree, the alternatives; the default is
what the model's authors recommend. Words that they recommend (a suffix, a negative prompt) are not copied: the model's
class reads them from the authors' repository at a commit, or from the docstring of the pipeline. Sources: "card" is the
model's page on the hub or its authors' README, "pipeline" the default of diffusers 0.42.1, "TRIG" and "WISE" the
benchmarks' papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
# The half-precision copies themselves, with what has none.
FP16_FILES = (
    "*.json",
    "*/*.txt",
    "*/*.model",
    "*/model.fp16*.safetensors",
    "*/diffusion_pytorch_model.fp16*.safetensors",
)
# All folders: for repositories whose weights are not known to be in safetensors.
PIPELINE_FOLDERS = ("model_index.json", "*/*")
ALL: tuple[str, ...] = ()

Weights = tuple[str, str | None, tuple[str, ...]]
"""Hub id, commit (None: the newest), and the patterns of the needed files."""

CLASSES = {
    "DiffusersT2I": ".model_utils.diffusers_t2i",
    "DiffusersEdit": ".model_utils.diffusers_edit",
    "DiffusersSubject": ".model_utils.diffusers_subject",
    "QwenImage": ".model_utils.qwen_image",
    "QwenImage2512": ".model_utils.qwen_image",
    "FluxIPAdapter": ".model_utils.flux_ip_adapter",
    "OmniGenEdit": ".model_utils.omnigen",
    "OmniGenSubject": ".model_utils.omnigen",
    "HQEdit": ".model_utils.hq_edit",
    "BlipDiffusion": ".model_utils.blip_diffusion",
    "JanusT2I": ".model_utils.janus",
    "Emu3T2I": ".model_utils.emu3",
}


def native(
    class_name: str,
    weights: Weights,
    entry: Mapping[str, Any] | None = None,
    dtype: str | Mapping[str, str] = "bfloat16",
    **model_kwargs: Any,
) -> dict[str, Any]:
    """An entry; ``entry`` has what it holds besides (``gpus``, ``assets``), None of ``model_kwargs`` is left out.

    ``dtype`` always stands in it: it decides pixels, so no default of a class should.
    """
    model_path, revision, patterns = weights
    kwargs = {"revision": revision, "dtype": dtype, **model_kwargs}
    return {
        "model_path": model_path,
        "module": CLASSES[class_name],
        "class": class_name,
        "model_kwargs": {name: value for name, value in kwargs.items() if value is not None},
        **({"patterns": list(patterns)} if patterns else {}),
        **(entry or {}),
    }
