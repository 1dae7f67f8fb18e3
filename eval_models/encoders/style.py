"""How like a style's reference images an image is, in the eyes of two style encoders, CSD and SE."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from eval_models.encoders.csd import Csd, CsdWeights, find_csd, load_csd
from eval_models.encoders.encoder import Encoder, NotMeasured, to_device
from eval_models.encoders.pixels import crop_centre, resize_shortest, to_floats
from eval_models.encoders.weights import does_not_load, find
from imageevalkit.benchmark.question import Question
from imageevalkit.errors import CellFailure
from imageevalkit.images import sha256_file
from imageevalkit.weights import WeightsSource


class StyleEncoder(Encoder):
    """Asked by a message of a picture and the name of a style.

    ``references`` are the files of the styles' reference vectors: "csd" (CSD_embed.pt) and "se" (SE_embed.pt), each
    ``{style: (references, width)}``. An answer holds the dot products with those of its style: {"csd":
    […], "se": […], "se_exact": […]}. Those of CSD are float32's, "se" is bfloat16's throughout as the official code
    has it, and "se_exact" is float32's of the same bfloat16 vectors.
    """

    name = "csd+se"

    def __init__(self, references: Mapping[str, Path | str], **options: Any) -> None:
        super().__init__(**options)
        self._files = {name: Path(references[name]) for name in ("csd", "se")}

    @property
    def identity(self) -> dict[str, Any]:
        try:
            references = {name: sha256_file(path) for name, path in self._files.items()}
        except OSError as error:
            raise CellFailure(f"encoders: {error.filename} cannot be read ({error.strerror})") from error
        return {
            "encoder": "style",
            "weights": {**self._csd.identity, "se": self._se.identity},
            "precision": {"csd": "float32", "se": "bfloat16"},
            "references": references,
        }

    def load(self, questions: Sequence[Question], device: str) -> _Models:
        references = _References.load(self._files, device)
        models = _Models(load_csd(self._csd, device), load_se(self._se, device), references, device)
        references.check(models, self._files)
        return models

    @functools.cached_property
    def _csd(self) -> CsdWeights:
        return find_csd(self.weights)

    @functools.cached_property
    def _se(self) -> WeightsSource:
        return find("se", self.weights)


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
    references: _References
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

    def measure(self, question: Question, features: tuple[Any, Any]) -> dict[str, list[float]]:
        """The dot products with the references of the question's style."""
        style = question.text
        if style not in self.references.csd:
            raise NotMeasured(f"there are no reference vectors of the style '{style}'")
        csd, se = features
        csd_references, se_references = self.references.csd[style], self.references.se[style]
        products = {
            "csd": csd @ csd_references.T,
            # both are bfloat16: so is each product, in steps of 0.002 to 0.004 where scores are
            "se": se @ se_references.T,
            "se_exact": se.float() @ se_references.float().T,
        }
        return {name: found[0].tolist() for name, found in products.items()}


class Se:
    """``image_size`` in pixels is the side of what it takes; ``width`` is the length of its style vectors."""

    def __init__(self, model: Any, device: str) -> None:
        self._model = model.to(device)
        self.image_size: int = model.config.image_size
        self.width: int = model.config.projection_dim

    def style_vectors(self, pixels: Any) -> Any:
        """(batch, width), bfloat16, each of length 1 as bfloat16 can; ``pixels`` (batch, 3, size, size), float32."""
        import torch

        embeds = self._model(pixel_values=pixels.to(torch.bfloat16)).image_embeds
        return torch.nn.functional.normalize(embeds, dim=-1, p=2)


def load_se(source: WeightsSource, device: str) -> Se:
    """The encoder, in bfloat16.

    Raises:
        CellFailure: it does not load.
    """
    try:
        import torch
        import transformers

        # its bars and its advice to programmers would garble the log of the job
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        model, loading = transformers.CLIPVisionModelWithProjection.from_pretrained(
            source.model_path, revision=source.commit, dtype=torch.bfloat16, output_loading_info=True
        )
        missing = sorted(loading["missing_keys"])
        if missing:
            # transformers only warns, and an encoder with random weights answers all the same
            raise CellFailure(
                f"encoders: {source.model_path} lacks {len(missing)} of its weights (first: {missing[0]}); "
                "download it anew"
            )
        return Se(model.eval(), device)
    except CellFailure:
        raise
    except Exception as error:  # the hub, a damaged file, no memory left on the device
        raise does_not_load(source, error) from error
