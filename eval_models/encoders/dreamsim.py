"""DreamSim embeddings by the official package. OneIG's diversity is the distance of two embeddings."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders.encoder import TORCH, Encoder, to_device, to_floats
from eval_models.encoders.weights import DREAMSIM_ENTRIES, ENCODERS, LORA, loading, refuse_unfit
from imageevalkit.assets.weights import first_line
from imageevalkit.benchmark.question import Question
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.hashes import weights_of

if TYPE_CHECKING:
    import numpy as np


class DreamSimEncoder(Encoder):
    """A question holds one picture. The answer holds its "embedding": float32, little-endian, as base64.

    The embedding comes from the ensemble (DINO, CLIP and OpenCLIP, each with LoRA) and has mean 0 and length
    1.
    """

    name = "dreamsim"
    weight_names = ("dreamsim",)
    is_official = True
    packages = (*TORCH, "dreamsim", "torchvision", "peft")
    precision = "float32"

    @property
    def identity(self) -> dict[str, Any]:
        """The identity hashes only the files that the package reads, because Python writes other files
        there."""
        folder = Path(self.sources["dreamsim"].model_path)
        files = {entry: weights_of(str(folder / entry)).get("weights", "") for entry in DREAMSIM_ENTRIES}
        return {**super().identity, "weights": files}

    def load(self, questions: Sequence[Question]) -> Any:
        source = self.sources["dreamsim"]
        try:
            from dreamsim import dreamsim
        except Exception as error:  # torchvision built for another torch raises RuntimeError
            raise CellFailure(
                f"encoders: the package dreamsim does not import here ({first_line(error)}); {ENCODERS.remedy}"
            ) from error
        with loading(source), tempfile.TemporaryDirectory() as links:
            # torch.hub writes into the folder that it reads, which may be read-only or shared by several jobs
            for entry in Path(source.model_path).iterdir():
                (Path(links) / entry.name).symlink_to(entry.resolve())
            (Path(links) / "trusted_list").unlink(missing_ok=True)
            # the package prints messages about the temporary folder and always warns
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                model, _ = dreamsim(pretrained=True, device=self.device, cache_dir=links)
            refuse_unfit(source, {"lacks": _lora_not_loaded(model, Path(links) / LORA, self.device)})
        return model

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Returns float32 pixels in 0-1, (3, 224, 224), like the package's own preprocessing."""
        stretched = image.resize((224, 224), Image.Resampling.BICUBIC)
        return to_floats(stretched, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))

    def forward(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.models.embed(to_device(batch, self.device)).float().cpu().numpy())

    def measure(self, question: Question, features: np.ndarray) -> dict[str, str]:
        return {"embedding": packed(features)}


def _lora_not_loaded(model: Any, folder: Path, device: str) -> set[str]:
    """Returns the LoRA weights missing in ``folder``: peft only warns about them and leaves them random."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    return {*get_peft_model_state_dict(model)} - {*load_peft_weights(str(folder), device=device)}


def packed(values: Sequence[float] | np.ndarray) -> str:
    """Returns ``values`` as base64 of little-endian float32. Raises ValueError if a value is not finite."""
    import numpy as np

    embedding = np.asarray(values, dtype="<f4")
    if not np.isfinite(embedding).all():
        raise ValueError("an embedding that is not finite")
    return base64.b64encode(embedding.tobytes()).decode()


def read_embedding(text: str) -> Sequence[float]:
    """Returns the values of an answer's ``text``. Raises ValueError, KeyError or TypeError if the text is
    invalid."""
    import numpy as np

    data = base64.b64decode(json.loads(text)["embedding"], validate=True)
    values: list[float] = np.frombuffer(data, dtype="<f4").tolist()
    return values


def distances(embeddings: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns the matrix of DreamSim distances of non-zero ``embeddings``: 1 - cosine, from 0 (equal) to 2.

    The package computes in float32, this function in float64 (differences below 1e-6).
    """
    import numpy as np

    vectors = np.asarray(embeddings, dtype=np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found: list[list[float]] = (1 - vectors @ vectors.T).tolist()
    return found
