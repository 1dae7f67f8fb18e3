"""``python -m tests.support.geneval_colors_run FOLDER``: the logits of GenEval's colours by our evaluator and by
open_clip, as JSON.

A process of its own, because the torchvision that open_clip imports must not be seen by any other test.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from eval_models.encoders.clip import load_clip
from eval_models.encoders.instances import Detected
from eval_models.encoders.mask2former import Mask2Former
from imageevalkit.assets.weights import WeightsSource
from tests.support.tiny_measurers import save_open_clip

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
# as long as the official ones, of which prefetch gets the texts
TEMPLATES = (
    "a photo of a {{c}} {classname}",
    "a photo of a {{c}}-colored {classname}",
    "a photo of a {{c}} object",
)
NAMES = ("wine glass", "bear")


def main(folder: Path) -> dict[str, Any]:
    import open_clip
    import torch

    save_open_clip(folder)
    # a configuration without QuickGELU, as open_clip's of ViT-L-14 is
    config = json.loads((folder / "open_clip_config.json").read_text())
    config["model_cfg"]["quick_gelu"] = False
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    encoder = Mask2Former([], COLORS, TEMPLATES, device="cpu")
    clip = load_clip(
        WeightsSource(str(folder), None, {}),
        ["open_clip_model.safetensors"],
        "cpu",
        changes={"quick_gelu": True},
    )
    encoder.models = (None, clip)

    model = open_clip.CLIP(**{**config["model_cfg"], "quick_gelu": True}).eval()
    model.load_state_dict(open_clip.factory.load_state_dict(str(folder / "open_clip_model.safetensors")))
    side = config["model_cfg"]["vision_cfg"]["image_size"]
    transform = open_clip.image_transform(side, is_train=False)
    draw, found = random.Random(0), dict[str, Any](ours=[], theirs=[])
    for name in NAMES:
        image = Image.frombytes("RGB", (20, 15), draw.randbytes(900)).resize(
            (200, 150), Image.Resampling.BICUBIC
        )
        objects = []
        for _ in range(8):
            x, y = draw.randrange(100), draw.randrange(70)
            box = (x, y, x + draw.randrange(20, 100), y + draw.randrange(20, 80))
            mask = np.random.RandomState(x).random_sample((box[3] - box[1], box[2] - box[0])) > 0.3
            objects.append(Detected(box, 0.9, mask))
        found["ours"] += encoder.color_logits(image, name, objects).tolist()
        texts = [template.format(classname=name).replace("{c}", "{}") for template in TEMPLATES]
        with torch.no_grad():
            weights = open_clip.build_zero_shot_classifier(
                model, open_clip.SimpleTokenizer(), COLORS, texts, device="cpu"
            )
            for one in objects:
                whole: np.ndarray = np.zeros((150, 200), bool)
                whole[one.box[1] : one.box[3], one.box[0] : one.box[2]] = one.mask
                grey = Image.new("RGB", image.size, "#999")
                crop = Image.composite(image, grey, Image.fromarray(whole)).crop(one.box)
                features = model.encode_image(transform(crop)[None], normalize=True)
                found["theirs"] += (100.0 * features @ weights).tolist()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
