"""``python -m tests.support.mmdet_golden FOLDER [full] [more]``: mmdetection's answers about drawn images.

It needs mmdet 2.28.2, the Python files of mmcv-full 1.7.2 (its compiled operators are not called on a CPU), torch and
OpenCV: tests/support/mmdet_answers/README.md says how the files there were made. ``full`` takes the sizes of Swin-S,
without it the network is small; ``more`` takes 20 images.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mmdet
import numpy as np
from mmcv import Config
from mmdet.apis import inference_detector
from mmdet.models import build_detector

from tests.support.mmdet_checkpoint import drawn, filled, localise, save

SIZES = ((512, 512), (768, 1360), (1104, 1472), (1664, 928), (832, 1248), (1024, 768))
"""Height and width of the images: those of the specification's table that differ after resizing."""
MORE = (
    (1024, 1024),
    (1328, 1328),
    (256, 256),
    (333, 500),
    (200, 900),
    (640, 480),
    (719, 1281),
    (97, 113),
    (2048, 2048),
    (1080, 1920),
    (576, 1024),
    (1360, 768),
    (801, 1334),
    (64, 640),
)
"""With these there are 20."""
STEP = 16
"""Every so many mask logits of a row and of a column are kept."""
_NAME = "mask2former_swin-s-p4-w7-224_lsj_8x2_50e_coco"


def main(folder: Path, is_full: bool, has_more: bool) -> None:
    config = Config.fromfile(Path(mmdet.__file__).parent / f".mim/configs/mask2former/{_NAME}.py")
    config.model.backbone.init_cfg = None
    if not is_full:
        _shrink(config.model)
    model = build_detector(config.model).eval()
    model.cfg = config
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    state = filled(shapes)
    for name, tensor in model.state_dict().items():
        if name.endswith("relative_position_index"):
            state[name] = tensor
    model.load_state_dict(state)
    folder.mkdir(parents=True, exist_ok=True)
    mean = _mask_features(model, folder / "0.png").mean(1).tolist()
    localise(state, mean)
    model.load_state_dict(state)
    (folder / "mean.json").write_text(json.dumps(mean))
    save(folder / "random.pth", state)
    (folder / "shapes.json").write_text(json.dumps(shapes))
    seen: dict[str, Any] = {}
    head = model.panoptic_head
    plain, plain_forward = head.simple_test, model.extract_feat

    def noted(features: Any, metas: Any, **options: Any) -> Any:
        classes, masks = plain(features, metas, **options)
        seen.update(classes=classes[0], masks=masks[0], meta=metas[0])
        return classes, masks

    def extracted(image: Any) -> Any:
        seen["input"] = image[0]
        return plain_forward(image)

    head.simple_test, model.extract_feat = noted, extracted
    for number, (height, width) in enumerate(SIZES + MORE * has_more):
        picture = folder / f"{number}.png"
        drawn(number, height, width).save(picture)
        boxes, masks = inference_detector(model, str(picture))
        meta = seen["meta"]
        found = [
            (n, *box, mask.sum()) for n in range(80) for box, mask in zip(boxes[n], masks[n], strict=True)
        ]
        np.savez_compressed(
            folder / f"{number}.npz",
            size=[height, width],
            resized=meta["img_shape"][:2],
            padded=meta["batch_input_shape"],
            input=seen["input"][:, ::97, ::97].numpy(),
            classes=seen["classes"].numpy(),
            # the masks are those after upscaling to the input
            masks=seen["masks"][:, :: 4 * STEP, :: 4 * STEP].numpy(),
            found=np.array(found, dtype=np.float32),
        )
        boxes_found = {one[1:5] for one in found}
        print(f"{number}: {height} x {width}, {len(found)} detections, {len(boxes_found)} boxes", flush=True)


def _mask_features(model: Any, picture: Path) -> Any:
    """Returns the mask features (channels, pixels) of the first image, which it draws as ``picture``."""
    drawn(0, *SIZES[0]).save(picture)
    seen: dict[str, Any] = {}
    hook = model.panoptic_head.pixel_decoder.register_forward_hook(
        lambda *call: seen.update(found=call[-1][0])
    )
    inference_detector(model, str(picture))
    hook.remove()
    return seen["found"][0].flatten(1)


def _shrink(model: Any) -> None:
    """The same architecture with less of everything: the heads and the levels stay."""
    model.backbone.update(embed_dims=16, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8])
    head = model.panoptic_head
    width = 64
    head.update(in_channels=[16, 32, 64, 128], feat_channels=width, out_channels=width, num_queries=20)
    encoder, decoder = head.pixel_decoder.encoder, head.transformer_decoder
    encoder.num_layers, decoder.num_layers = 2, 4
    encoder.transformerlayers.attn_cfgs.embed_dims = width
    encoder.transformerlayers.ffn_cfgs.update(embed_dims=width, feedforward_channels=96)
    decoder.transformerlayers.attn_cfgs.embed_dims = width
    decoder.transformerlayers.ffn_cfgs.update(embed_dims=width, feedforward_channels=80)
    decoder.transformerlayers.feedforward_channels = 80
    head.pixel_decoder.positional_encoding.num_feats = head.positional_encoding.num_feats = width // 2


if __name__ == "__main__":
    main(Path(sys.argv[1]), "full" in sys.argv[2:], "more" in sys.argv[2:])
