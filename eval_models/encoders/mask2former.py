"""GenEval's evaluator: Mask2Former of transformers detects objects, and CLIP classifies their colours.

Preprocessing and postprocessing follow mmdetection 2.x, the base of GenEval's official program; transformers'
own processor differs in both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from PIL import Image

from eval_models.encoders.clip import OpenClip, load_clip
from eval_models.encoders.encoder import TORCH, Encoder, clip_pixels, inference, to_device
from eval_models.encoders.weights import load_pretrained
from imageevalkit.benchmark.question import Question

if TYPE_CHECKING:
    import numpy as np
    import torch

# from mmdetection's configuration of this model: the limits of the input's sides, and the normalisation
_LONG, _SHORT, _MULTIPLE = 1333, 800, 32
_PAPER = 128
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_MOST = 100
# no benchmark counts less confident detections
_LEAST_CONFIDENT = 0.3
# weights of the loss, and position indices that current transformers computes itself
_UNUSED = r"criterion\..*|.*\.relative_position_index"
# file names of open_clip: current, older
_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# the colour that replaces everything but the object before CLIP sees the crop
_GREY = (153, 153, 153)


class Frame(NamedTuple):
    """The input of the network: ``pixels`` (3, height, width) with padding; ``size`` (height, width) is the
    size without padding, ``image`` the original image."""

    pixels: np.ndarray
    size: tuple[int, int]
    image: Image.Image


class Detected(NamedTuple):
    """A detected object. ``mask`` is a boolean array of the box: True where the pixel belongs to the
    object."""

    box: tuple[int, int, int, int]
    confidence: float
    mask: np.ndarray


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
        network = load_pretrained(
            detector, "Mask2FormerForUniversalSegmentation", "float32", self.device, unused=_UNUSED
        )
        self._classifiers = {}
        return network, load_clip(clip, _CLIP_FILES, self.device)

    def prepare(self, image: Image.Image) -> Frame:
        """Returns the image resized to fit 1333 x 800, padded with grey to multiples of 32, and
        normalised."""
        import cv2
        import numpy as np

        scale = min(_LONG / max(image.size), _SHORT / min(image.size))
        width, height = (int(side * scale + 0.5) for side in image.size)
        resized = cv2.resize(np.asarray(image), (width, height), interpolation=cv2.INTER_LINEAR)
        rows, columns = (-side % _MULTIPLE for side in (height, width))
        padded = np.pad(resized, ((0, rows), (0, columns), (0, 0)), constant_values=_PAPER)
        values = (padded.astype(np.float32) - np.float32(_MEAN)) / np.float32(_STD)
        return Frame(np.ascontiguousarray(values.transpose(2, 0, 1)), (height, width), image)

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
                found[n] = self._detected(batch[n], classes, masks) if is_finite else None
        # transformers keeps the last position embedding of the process, 0.3 GiB of a full batch, without the model too
        embed = self.models[0].model.transformer_module.position_embedder
        embed(torch.Size((1, 1, 1, 1)), "cpu", torch.float32)
        return [(frame, found[n]) for n, frame in enumerate(batch)]

    def _detected(
        self, frame: Frame, classes: torch.Tensor, masks: torch.Tensor
    ) -> dict[str, list[Detected]]:
        """Returns detections from the 100 most probable (query, class) pairs, like mmdetection's instance
        head."""
        from torch.nn.functional import interpolate

        count = len(self.classes)
        flat = classes.float().softmax(-1)[:, :count].flatten()
        probabilities, pairs = flat.topk(min(_MOST, len(flat)))
        queries = pairs.div(count, rounding_mode="floor")
        height, width = frame.pixels.shape[1:]
        found: dict[str, list[Detected]] = {}
        # a mask only lowers the confidence, so masks of pairs below the threshold need no upscaling
        for query in queries[probabilities.double() > _LEAST_CONFIDENT].unique():
            whole = interpolate(
                masks[query][None, None].float(), (height, width), mode="bilinear", align_corners=False
            )
            inner = whole[..., : frame.size[0], : frame.size[1]]
            logit = interpolate(inner, frame.image.size[::-1], mode="bilinear", align_corners=False)[0, 0]
            mask = logit > 0
            area = mask.sum()
            if not area:
                continue
            inside = (logit.sigmoid() * mask).sum() / (area + 1e-6)
            rows, columns = (mask.any(axis).nonzero() for axis in (1, 0))
            box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
            cut = mask[box[1] : box[3], box[0] : box[2]].cpu().numpy()
            for place in (queries == query).nonzero()[:, 0]:
                confidence = float(probabilities[place] * inside)
                if confidence > _LEAST_CONFIDENT:
                    name = self.classes[int(pairs[place]) % count]
                    found.setdefault(name, []).append(Detected(box, confidence, cut))
        return {name: sorted(objects, key=lambda one: -one.confidence) for name, objects in found.items()}

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
        """Returns CLIP's colour of each object. The background in the object's box is replaced with grey."""
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
            logits = (100.0 * features @ self._classifier(name).T).float().cpu()
        if not logits.isfinite().all():
            raise ValueError("features that are not finite")
        return [self.colors[int(place)] for place in logits.argmax(1)]

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
