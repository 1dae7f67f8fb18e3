"""shapes-tiny without torch: the project's own small diffusion model, run by onnxruntime.

The folder of a checkpoint is a pipeline of diffusers: the class DiffusersT2I loads it too, and makes the same images up
to rounding. ``infer/training/`` makes folder and graphs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from imageevalkit.generate.model import ImageModel, ModelUnusable

GRAPHS = Path(__file__).resolve().parents[1] / "shapes_tiny" / "onnx"
_FILES = {
    "text_encoder": "model.safetensors",
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}
_DTYPES = {"F16": np.float16, "F32": np.float32}


class ShapesTiny(ImageModel):
    """Text to image of 96 × 96 pixels.

    Args:
        model_path: the folder of a checkpoint.
        num_inference_steps: steps of the solver, at least 1.
        guidance_scale: weight of the prompt, at least 1 (1: no guidance).
        batch_size: images that are made together.
    """

    seed_honoured = True

    def __init__(
        self,
        model_path: str,
        *,
        num_inference_steps: int = 12,
        guidance_scale: float = 4.0,
        batch_size: int = 8,
    ) -> None:
        if num_inference_steps < 1 or guidance_scale < 1:
            raise ModelUnusable("shapes-tiny: num_inference_steps and guidance_scale are at least 1")
        folder = Path(model_path)
        self.model_name, self.batch_size = folder.name, batch_size
        self._guidance, self._steps = guidance_scale, num_inference_steps
        try:
            tokenizer = json.loads((folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
            unet = json.loads((folder / "unet" / "config.json").read_text(encoding="utf-8"))
            vae = json.loads((folder / "vae" / "config.json").read_text(encoding="utf-8"))
            text = json.loads((folder / "text_encoder" / "config.json").read_text(encoding="utf-8"))
            self._sessions = {part: _session(part, folder / part / file) for part, file in _FILES.items()}
        except Exception as error:  # onnxruntime raises types of its own
            raise ModelUnusable(
                f"{model_path} is no folder of shapes-tiny, or its weights do not fit the graphs in {GRAPHS}: {error}"
            ) from None
        self._vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
        self._scale = vae["scaling_factor"]
        self._length = text["max_position_embeddings"]
        self._shape = (unet["in_channels"], unet["sample_size"], unet["sample_size"])

    def generate(self, prompt: str, seed: int = 42) -> Image.Image:
        """Returns the image for a prompt."""
        return self.generate_batch([prompt], [seed])[0]

    def generate_batch(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Image.Image]:
        """Returns an image for each prompt with its seed.

        The solver is DPM-Solver++(2M), midpoint, with λ = log((1 − σ) / σ) (Lu et al. 2022, arXiv 2211.01095).
        """
        # the unguided half is the empty prompt
        tokens = np.array([self._tokens("")] * len(prompts) + [self._tokens(prompt) for prompt in prompts])
        context = self._run("text_encoder", tokens=tokens)
        latents = np.stack([noise(seed, self._shape) for seed in seeds])
        # as DPMSolverMultistepScheduler with use_flow_sigmas
        sigmas = [*(1 - np.linspace(1, 1e-3, self._steps + 1))[:0:-1].tolist(), 0.0]
        before, h_before = latents, 1.0
        for n, (sigma, after) in enumerate(pairwise(sigmas)):
            times: np.ndarray = np.full(2 * len(prompts), int(sigma * 1000), np.float32)
            both = self._run("unet", latents=np.concatenate([latents] * 2), time=times, context=context)
            plain, prompted = np.split(both, 2)
            clean = latents - sigma * (plain + self._guidance * (prompted - plain))
            if not after:
                latents = clean
                break
            h = math.log((1 - after) / after) - math.log((1 - sigma) / sigma)
            slope = (clean - before) * (h / h_before) if n else 0.0
            latents = after / sigma * latents - (1 - after) * math.expm1(-h) * (clean + slope / 2)
            before, h_before = clean, h
        pixels = self._run("vae", latents=latents / np.float32(self._scale)).transpose(0, 2, 3, 1)
        levels = (np.clip(pixels / 2 + 0.5, 0, 1) * 255).round().astype(np.uint8)
        return [Image.fromarray(one) for one in levels]

    def _tokens(self, prompt: str) -> list[int]:
        """Returns the ids of a prompt's words, and of the letters of its words in capitals."""
        unknown = self._vocabulary["<unknown>"]
        words = [self._vocabulary.get(word, unknown) for word in re.findall("[a-z]+|[A-Z]", prompt)]
        ids = [self._vocabulary["<start>"], *words[: self._length - 2], self._vocabulary["<end>"]]
        return ids + [self._vocabulary["<pad>"]] * (self._length - len(ids))

    def _run(self, part: str, **inputs: np.ndarray) -> np.ndarray:
        (output,) = self._sessions[part].run(None, inputs)
        return np.asarray(output)


def _session(part: str, weights: Path) -> Any:
    """Returns the graph of a part with the weights of a safetensors file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # threads that wait actively would take the cores from the other model of a run
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    values = {f"{part}.{name}": value for name, value in tensors(weights).items()}
    # generation needs no encoder of images, so the graph has none
    values = {name: value for name, value in values.items() if not name.startswith("vae.encoder.")}
    ort_values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in values.values()]
    options.add_external_initializers([*values], ort_values)
    graph = (GRAPHS / f"{part}.onnx").read_bytes()
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def tensors(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a safetensors file in single precision."""
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in entry["data_offsets"])
            values = np.frombuffer(data[begin:end], _DTYPES[entry["dtype"]])
            found[name] = values.reshape(entry["shape"]).astype(np.float32)
    return found


def noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the normal noise that torch draws on the CPU for a seed, so that both routes make the same image.

    The number of values is a multiple of 16. Of the seed, torch uses the lower 32 bits.
    torch takes uniform numbers of 24 bits from the Mersenne Twister, and applies the Box-Muller transform to each 16.
    """
    bits = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, np.prod(shape), dtype=np.uint32)
    uniform = ((bits & 0xFFFFFF) / np.float32(2**24)).astype(np.float32).reshape(-1, 2, 8)
    radius = np.sqrt(-2 * np.log(1 - uniform[:, 0]))
    angle = np.float32(2 * np.pi) * uniform[:, 1]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return normal.reshape(shape).astype(np.float32)
