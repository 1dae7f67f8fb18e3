"""An evaluator of GenEval: Mask2Former of transformers detects objects, and CLIP classifies their colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from PIL import Image

from eval_models.encoders.clip import OpenClip, load_clip
from eval_models.encoders.encoder import TORCH, Encoder, clip_pixels, inference, to_device
from eval_models.encoders.instances import Detected, Frame, detected, prepared
from eval_models.encoders.weights import load_pretrained
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.benchmark.question import Question

if TYPE_CHECKING:
    import torch

DETECTOR = "Mask2FormerForUniversalSegmentation"
"""The class of transformers."""
# no benchmark counts less confident detections
LEAST_CONFIDENT = 0.3
# weights of the loss, and position indices that current transformers computes itself
_UNUSED = r"criterion\..*|.*\.relative_position_index"
# a weight of the loss, and a norm behind the backbone that no output passes through (new in transformers 5)
NEEDLESS = r"criterion\.empty_weight|.*\.swin\.layernorm\.(weight|bias)"
# file names of open_clip: current, older
_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# the colour that replaces everything but the object before CLIP sees the crop
_GREY = (153, 153, 153)


class Mask2Former(Encoder):
    """A question holds a picture and a JSON object: the number of objects to classify by colour, by class.

    ``classes`` are the names of the detector's classes in order, ``colors`` the candidate colours.
    ``templates`` are the texts of CLIP's classifier ("a photo of a {{c}} {classname}"). The answer is
    {"objects": {class: [[x1, y1, x2, y2, confidence], …]}, "colors": {class: [color, …]}}. Boxes are in
    pixels; x2 and y2 are exclusive.
    """

    name = "mask2former"
    weight_names = ("mask2former", "geneval_clip")
    packages = (*TORCH, "open_clip_torch", "opencv-python")
    precision: ClassVar = {"objects": "float32", "colors": "float16 on a GPU"}

    def __init__(
        self, classes: Sequence[str], colors: Sequence[str], templates: Sequence[str], **options: Any
    ) -> None:
        super().__init__(**options)
        self.classes, self.colors, self.templates = list(classes), list(colors), list(templates)
        self._classifiers: dict[str, torch.Tensor] = {}

    @property
    def identity(self) -> dict[str, Any]:
        chosen = {"classes": self.classes, "colors": self.colors, "templates": self.templates}
        return {**super().identity, **chosen}

    def load(self, questions: Sequence[Question]) -> tuple[Any, OpenClip]:
        detector, clip = self.sources.values()
        self._classifiers = {}
        # OpenAI's weights need it; open_clip only warns without
        changes = {"quick_gelu": True}
        return self.load_detector(detector), load_clip(clip, _CLIP_FILES, self.device, changes=changes)

    def load_detector(self, source: WeightsSource) -> Any:
        """Loads transformers' Mask2Former. Raises CellFailure if the weights do not load."""
        return load_pretrained(source, DETECTOR, "float32", self.device, unused=_UNUSED, needless=NEEDLESS)

    def prepare(self, image: Image.Image) -> Frame:
        return prepared(image)

    def forward(self, batch: list[Frame]) -> list[tuple[Frame, dict[str, list[Detected]] | None]]:
        """Returns the objects of each image by class, or None if the network's output is not finite.

        Images of equal size go through the network together.
        """
        import torch

        found: dict[int, dict[str, list[Detected]] | None] = {}
        of_shape: dict[tuple[int, ...], list[int]] = {}
        for n, frame in enumerate(batch):
            of_shape.setdefault(frame.pixels.shape, []).append(n)
        for numbers in of_shape.values():
            output = self.models[0](pixel_values=to_device([batch[n].pixels for n in numbers], self.device))
            logits = zip(output.class_queries_logits, output.masks_queries_logits, strict=True)
            for n, (classes, masks) in zip(numbers, logits, strict=True):
                is_finite = classes.isfinite().all() and masks.isfinite().all()
                found[n] = (
                    detected(batch[n], classes, masks, self.classes, LEAST_CONFIDENT) if is_finite else None
                )
        # transformers keeps the last position embedding of the process, 0.3 GiB of a full batch, without the model too
        embed = self.models[0].model.transformer_module.position_embedder
        embed(torch.Size((1, 1, 1, 1)), "cpu", torch.float32)
        return [(frame, found[n]) for n, frame in enumerate(batch)]

    def measure(
        self, question: Question, features: tuple[Frame, dict[str, list[Detected]] | None]
    ) -> dict[str, Any]:
        """Returns the objects and the colours of the classes in the question."""
        frame, found = features
        if found is None:
            raise ValueError("logits that are not finite")
        asked = json.loads(question.text)
        return {
            "objects": {
                name: [[*map(float, one.box), one.confidence] for one in objects]
                for name, objects in found.items()
            },
            "colors": {
                name: self._colors(frame.image, name, found[name][:count])
                for name, count in asked.items()
                if name in found
            },
        }

    def _colors(self, image: Image.Image, name: str, objects: Sequence[Detected]) -> list[str]:
        """Returns CLIP's colour of each object."""
        logits = self.color_logits(image, name, objects)
        if not logits.isfinite().all():
            raise ValueError("features that are not finite")
        return [self.colors[int(place)] for place in logits.argmax(1)]

    def color_logits(self, image: Image.Image, name: str, objects: Sequence[Detected]) -> torch.Tensor:
        """Returns CLIP's logits (objects, colours). The background in an object's box is replaced with grey."""
        crops = []
        for one in objects:
            crop = image.crop(one.box)
            paper = Image.new("RGB", crop.size, _GREY)
            paper.paste(crop, mask=Image.fromarray(one.mask))
            crops += clip_pixels(paper, self.models[1].image_size, "torchvision")
        clip = self.models[1]
        # the official program uses autocast throughout: half precision can tie two colours, and the first one
        # wins
        with inference("an object"), clip.autocast():
            features = clip.image_features(to_device(crops, self.device))
            return (100.0 * features @ self._classifier(name).T).float().cpu()

    def _classifier(self, name: str) -> torch.Tensor:
        """Returns (colours, width): for each colour the normalised mean of its text features."""
        if name not in self._classifiers:
            import torch

            rows = []
            for color in self.colors:
                texts = [text.format(classname=name).format(c=color) for text in self.templates]
                row = self.models[1].text_features(texts).mean(0)
                rows.append(row / row.norm())
            self._classifiers[name] = torch.stack(rows)
        return self._classifiers[name]
