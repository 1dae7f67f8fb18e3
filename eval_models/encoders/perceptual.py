"""DreamSim's embedding of an image, by the official package: OneIG's diversity is their distance."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from eval_models.encoders import dreamsim_files
from eval_models.encoders.batches import Encoded, run_batches
from eval_models.encoders.device import choose_device, free_memory, to_device
from eval_models.encoders.embedding import embedding_text
from eval_models.encoders.interface import EncoderOptions
from eval_models.encoders.pixels import stretch, to_floats
from eval_models.encoders.replies import error_answer
from eval_models.encoders.weights import ENCODERS, does_not_load, find, package_versions
from eval_models.weights_source import WeightsSource, missing_package
from imageevalkit.cell.fingerprint import weights_of
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.question import Answer, Question, Reply
from imageevalkit.load_errors import first_line

if TYPE_CHECKING:
    import numpy as np

SIZE = 224
_PACKAGES = ("dreamsim", "torchvision", "peft")


class DreamSimEncoder:
    """An :class:`eval_models.encoders.interface.Encoder` for questions of one message: (picture,).

    The text of a reply is as :func:`embedding_text` makes it. The embedding is the ensemble's (DINO, CLIP and OpenCLIP,
    each with LoRA), in float32, of mean 0 and length 1.
    """

    def __init__(self, options: EncoderOptions) -> None:
        self._options = options

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """See the interface. The folder counts by the files that the package reads: Python leaves others there."""
        packages = package_versions(*_PACKAGES)
        folder = Path(self._weights().model_path)
        files = dreamsim_files.entries()
        return {
            "encoder": "dreamsim",
            "weights": {entry: weights_of(str(folder / entry)).get("weights", "") for entry in files},
            "precision": "float32",
            "packages": packages,
        }

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """See the interface."""
        if not questions:
            return
        package_versions(*_PACKAGES)
        source = self._weights()
        device = choose_device(self._options)
        model = _load(source, device)
        embed = functools.partial(_embed, model, device)
        try:
            for encoded in run_batches(questions, prepare, embed, self._options):
                yield _answer(encoded)
        finally:
            del model, embed
            free_memory()

    def _weights(self) -> WeightsSource:
        source = find("dreamsim", self._options)
        folder = Path(source.model_path)
        if lacks := dreamsim_files.problem(folder):
            raise CellFailure(lacks)
        return source


def prepare(image: Image.Image) -> np.ndarray:
    """What the package's own preprocessing makes of ``image`` (RGB): float32 in 0-1, (3, 224, 224)."""
    return to_floats(stretch(image, SIZE), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def _embed(model: Any, device: str, pixels: list[np.ndarray]) -> list[np.ndarray]:
    return list(model.embed(to_device(pixels, device)).float().cpu().numpy())


def _load(source: WeightsSource, device: str) -> Any:
    """The package's model in evaluation mode, from files alone."""
    dreamsim = _import_package()
    with tempfile.TemporaryDirectory() as links:
        # torch.hub writes into the folder that it reads, which may be read-only or several jobs' own
        for entry in Path(source.model_path).iterdir():
            (Path(links) / entry.name).symlink_to(entry.resolve())
        (Path(links) / "trusted_list").unlink(missing_ok=True)
        try:
            with _quiet():
                model, _ = dreamsim(pretrained=True, device=device, cache_dir=links)
            lacking = _lora_not_loaded(model, Path(links) / dreamsim_files.LORA, device)
        except Exception as error:  # torch, peft and the code in the folder raise what they like
            raise does_not_load(source, error) from error
    if lacking:
        raise CellFailure(
            f"encoders: {source.model_path}/{dreamsim_files.LORA} does not fit the package dreamsim: it lacks "
            f"{', '.join(lacking[:3])}{' …' if len(lacking) > 3 else ''}"
        )
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the words on the temporary folder, and the warnings that the package always raises."""
    unread = io.StringIO()
    with (
        contextlib.redirect_stdout(unread),
        contextlib.redirect_stderr(unread),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _import_package() -> Any:
    try:
        from dreamsim import dreamsim
    except ImportError as error:
        raise missing_package(ENCODERS, error) from error
    except Exception as error:  # a torchvision that was built for another torch raises RuntimeError
        raise CellFailure(
            f"encoders: the package dreamsim does not import here ({first_line(error)}); {ENCODERS.remedy}"
        ) from error
    return dreamsim


def _lora_not_loaded(model: Any, folder: Path, device: str) -> list[str]:
    """The model's LoRA weights that the file in ``folder`` has not: peft would leave them random with a warning."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    return sorted({*get_peft_model_state_dict(model)} - {*load_peft_weights(str(folder), device=device)})


def _answer(encoded: Encoded) -> Answer:
    if encoded.features is None:
        return error_answer(encoded)
    import numpy as np

    if not np.isfinite(encoded.features).all():
        return Answer(encoded.question, None, "the encoder gave no finite number", encoded.seconds)
    text = embedding_text(encoded.features.tolist())
    return Answer(encoded.question, Reply(text), seconds=encoded.seconds)
