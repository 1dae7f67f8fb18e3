"""DreamSim's embedding of an image, by the official package: OneIG's diversity is their distance."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from eval_models.encoders.encoder import Encoder, to_device
from eval_models.encoders.pixels import stretch, to_floats
from eval_models.encoders.weights import (
    DREAMSIM_ENTRIES,
    ENCODERS,
    LORA,
    does_not_load,
    dreamsim_problem,
    find,
)
from imageevalkit.benchmark.question import Question
from imageevalkit.cell.fingerprint import weights_of
from imageevalkit.errors import CellFailure
from imageevalkit.weights import WeightsSource, first_line, missing_package

if TYPE_CHECKING:
    import numpy as np

SIZE = 224


class DreamSimEncoder(Encoder):
    """Asked by a message of one picture; an answer is as :func:`embedding_text` makes it.

    The embedding is the ensemble's (DINO, CLIP and OpenCLIP, each with LoRA), in float32, of mean 0 and length 1.
    """

    name = "dreamsim"
    packages = ("dreamsim", "torchvision", "peft")

    @property
    def identity(self) -> dict[str, Any]:
        """The folder counts by the files that the package reads: Python leaves others there."""
        folder = Path(self._source().model_path)
        return {
            "encoder": "dreamsim",
            "weights": {
                entry: weights_of(str(folder / entry)).get("weights", "") for entry in DREAMSIM_ENTRIES
            },
            "precision": "float32",
        }

    def load(self, questions: Sequence[Question], device: str) -> DreamSimModel:
        """The package's model in evaluation mode, from files alone."""
        source = self._source()
        try:
            from dreamsim import dreamsim
        except ImportError as error:
            raise missing_package(ENCODERS, error) from error
        except Exception as error:  # a torchvision that was built for another torch raises RuntimeError
            raise CellFailure(
                f"encoders: the package dreamsim does not import here ({first_line(error)}); {ENCODERS.remedy}"
            ) from error
        with tempfile.TemporaryDirectory() as links:
            # torch.hub writes into the folder that it reads, which may be read-only or several jobs' own
            for entry in Path(source.model_path).iterdir():
                (Path(links) / entry.name).symlink_to(entry.resolve())
            (Path(links) / "trusted_list").unlink(missing_ok=True)
            try:
                # without words on the temporary folder, and warnings that the package always raises
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()),
                    warnings.catch_warnings(),
                ):
                    warnings.simplefilter("ignore")
                    model, _ = dreamsim(pretrained=True, device=device, cache_dir=links)
                lacking = _lora_not_loaded(model, Path(links) / LORA, device)
            except Exception as error:  # torch, peft and the code in the folder raise what they like
                raise does_not_load(source, error) from error
        if lacking:
            raise CellFailure(
                f"encoders: {source.model_path}/{LORA} does not fit the package dreamsim: it lacks "
                f"{', '.join(lacking[:3])}{' …' if len(lacking) > 3 else ''}"
            )
        return DreamSimModel(model, device)

    def text(self, numbers: Mapping[str, Any]) -> str:
        return embedding_text(numbers["embedding"])

    def _source(self) -> WeightsSource:
        source = find("dreamsim", self.weights)
        if lacks := dreamsim_problem(Path(source.model_path)):
            raise CellFailure(lacks)
        return source


class DreamSimModel(NamedTuple):
    """The package's model, on ``device``."""

    model: Any
    device: str

    @staticmethod
    def prepare(image: Image.Image) -> np.ndarray:
        """What the package's own preprocessing makes of ``image`` (RGB): float32 in 0-1, (3, 224, 224)."""
        return to_floats(stretch(image, SIZE), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))

    def forward(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        """The embedding of each image."""
        return list(self.model.embed(to_device(batch, self.device)).float().cpu().numpy())

    def measure(self, question: Question, features: np.ndarray) -> dict[str, list[float]]:
        """The embedding."""
        return {"embedding": features.tolist()}


def _lora_not_loaded(model: Any, folder: Path, device: str) -> list[str]:
    """The model's LoRA weights that the file in ``folder`` has not: peft would leave them random with a warning."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    return sorted({*get_peft_model_state_dict(model)} - {*load_peft_weights(str(folder), device=device)})


def embedding_text(values: Sequence[float]) -> str:
    """JSON ``{"embedding": base64}`` of ``values`` as float32, little-endian."""
    packed = struct.pack(f"<{len(values)}f", *values)
    return json.dumps({"embedding": base64.b64encode(packed).decode()})


def read_embedding(text: str) -> Sequence[float]:
    """The float32 values that :func:`embedding_text` made ``text`` of. Raises ValueError: it is no such text."""
    try:
        packed = base64.b64decode(json.loads(text)["embedding"], validate=True)
        return struct.unpack(f"<{len(packed) // 4}f", packed)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError("no embedding as base64 of float32 values") from error


def distances(embeddings: Sequence[Sequence[float]]) -> list[list[float]]:
    """DreamSim's distance of each two of ``embeddings``: 1 - cosine, 0 (the same) to 2.

    The package computes it in float32; here the same values are float64 (differences below 1e-6).

    Raises:
        ValueError: the embeddings are not as long as each other, or one is zero.
    """
    import numpy as np

    if len({len(embedding) for embedding in embeddings}) != 1:
        raise ValueError("embeddings of different lengths have no distance")
    vectors = np.asarray(embeddings, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not lengths.all():
        raise ValueError("an embedding of zeros has no distance")
    vectors /= lengths
    found: list[list[float]] = (1 - vectors @ vectors.T).tolist()
    return found
