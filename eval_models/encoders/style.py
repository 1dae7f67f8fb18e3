"""How like a style's reference images an image is, in the eyes of two style encoders, CSD and SE."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from eval_models.encoders.batches import Encoded, run_batches
from eval_models.encoders.csd import Csd, CsdWeights, find_csd, load_csd
from eval_models.encoders.device import choose_device, free_memory, to_device
from eval_models.encoders.interface import EncoderOptions
from eval_models.encoders.pixels import crop_centre, resize_shortest, to_floats
from eval_models.encoders.replies import error_answer, number_answer
from eval_models.encoders.se import Se, load_se
from eval_models.encoders.weights import does_not_load, find, package_versions
from eval_models.weights_source import WeightsSource
from imageevalkit.errors import CellFailure
from imageevalkit.evaluation.question import Answer, Question
from imageevalkit.images import sha256_file


class StyleEncoder:
    """An :class:`eval_models.encoders.interface.Encoder` for questions of one message: (picture, style).

    ``references`` are the files of the styles' reference vectors: "csd" (CSD_embed.pt) and "se" (SE_embed.pt), each
    ``{style: (references, width)}``. The text of a reply holds the dot products with those of its style: {"csd":
    […], "se": […], "se_exact": […]}. Those of CSD are float32's, "se" is bfloat16's throughout as the official code
    has it, and "se_exact" is float32's of the same bfloat16 vectors.
    """

    def __init__(self, options: EncoderOptions, references: Mapping[str, Path]) -> None:
        self._options = options
        self._references = {name: Path(references[name]) for name in ("csd", "se")}

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """See the interface."""
        packages = package_versions()
        try:
            references = {name: sha256_file(path) for name, path in self._references.items()}
        except OSError as error:
            raise CellFailure(f"encoders: {error.filename} cannot be read ({error.strerror})") from error
        return {
            "encoder": "style",
            "weights": {**self._csd.identity, "se": self._se.identity},
            "precision": {"csd": "float32", "se": "bfloat16"},
            "references": references,
            "packages": packages,
        }

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """See the interface."""
        if not questions:
            return
        package_versions()
        device = choose_device(self._options)
        references = _References.load(self._references, device)
        known = [question for question in questions if question.text in references.csd]
        for question in questions:
            if question.text not in references.csd:
                yield Answer(question, None, f"there are no reference vectors of the style '{question.text}'")
        if not known:
            return
        models = _Models(load_csd(self._csd, device), load_se(self._se, device), device)
        try:
            references.check(models, self._references)
            for encoded in run_batches(known, models.prepare, models.forward, self._options):
                yield _answer(encoded, references)
        finally:
            del models
            free_memory()

    @functools.cached_property
    def _csd(self) -> CsdWeights:
        return find_csd(self._options)

    @functools.cached_property
    def _se(self) -> WeightsSource:
        return find("se", self._options)


class _References(NamedTuple):
    """Tensors (references, width) by style, on the device."""

    csd: Mapping[str, Any]
    se: Mapping[str, Any]

    @classmethod
    def load(cls, paths: Mapping[str, Path], device: str) -> _References:
        """Raises CellFailure where a file does not load, or a style is in one of them only."""
        import torch

        csd = _load_references(paths["csd"], torch.float32, device)
        se = _load_references(paths["se"], torch.bfloat16, device)
        if csd.keys() != se.keys():
            raise CellFailure(f"encoders: {paths['csd']} and {paths['se']} do not have the same styles")
        return cls(csd, se)

    def check(self, models: _Models, paths: Mapping[str, Path]) -> None:
        """Raise CellFailure where the vectors are not as long as those of their encoder."""
        pairs = (paths["csd"], self.csd, models.csd), (paths["se"], self.se, models.se)
        for path, references, encoder in pairs:
            widths = {vectors.shape[-1] for vectors in references.values()}
            if widths != {encoder.width}:
                raise CellFailure(
                    f"encoders: the vectors in {path} have {', '.join(map(str, sorted(widths)))} numbers, those "
                    f"of the encoder {encoder.width}: it is not the encoder that made them"
                )


def _load_references(path: Path, dtype: Any, device: str) -> dict[str, Any]:
    import torch

    try:
        # it was saved on a GPU
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        return {style: vectors.to(device, dtype) for style, vectors in loaded.items()}
    except Exception as error:  # a missing or damaged file, or anything else in its place
        raise does_not_load(WeightsSource(str(path), None, {}), error) from error


class _Models(NamedTuple):
    csd: Csd
    se: Se
    device: str

    def prepare(self, image: Image.Image) -> tuple[Any, Any]:
        """What each encoder takes of ``image``, in the way of the library that its authors used."""
        resized = resize_shortest(image, self.csd.image_size)
        csd = to_floats(crop_centre(resized, self.csd.image_size, "torchvision"))
        if self.se.image_size != self.csd.image_size:
            resized = resize_shortest(image, self.se.image_size)
        return csd, to_floats(crop_centre(resized, self.se.image_size, "transformers"))

    def forward(self, batch: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Style vectors (1, width) of both encoders, for each image."""
        csd = self.csd.style_vectors(to_device([pixels for pixels, _ in batch], self.device))
        se = self.se.style_vectors(to_device([pixels for _, pixels in batch], self.device))
        return list(zip(csd.split(1), se.split(1), strict=True))


def _answer(encoded: Encoded, references: _References) -> Answer:
    if encoded.features is None:
        return error_answer(encoded)
    style = encoded.question.text
    csd, se = encoded.features
    csd_references, se_references = references.csd[style], references.se[style]
    products = {
        "csd": csd @ csd_references.T,
        # both are bfloat16: so is each product, in steps of 0.002 to 0.004 where scores are
        "se": se @ se_references.T,
        "se_exact": se.float() @ se_references.float().T,
    }
    return number_answer(encoded, {name: found[0].tolist() for name, found in products.items()})
