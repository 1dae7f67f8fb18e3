"""GenEval's official detector: our answers beside mmdetection's, with random weights in mmdetection's format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eval_models.encoders import detector_check
from eval_models.encoders.detector_check import PICTURED, check_detector
from eval_models.encoders.instances import Frame, detected, prepared
from eval_models.encoders.mask2former_mmdet import MmdetMask2Former
from eval_models.encoders.mmdet_weights import converted, merged
from eval_models.encoders.weights import WEIGHTS
from imageevalkit.assets.weights import WeightsSource
from imageevalkit.common.errors import CellFailure
from tests.support.mmdet_checkpoint import ANSWERS, COCO, drawn, save, small

pytest.importorskip("cv2")

CLASSES = [{"mouse": "computer mouse", "remote": "tv remote"}.get(name, name) for name in COCO]


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    return small()


def load(path: Path) -> Any:
    encoder = MmdetMask2Former(CLASSES, [], [], weights={"mask2former_mmdet": str(path)}, device="cpu")
    return encoder.load_detector(WeightsSource(str(path), None, {}))


@pytest.fixture(scope="module")
def network(state: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("detector") / "random.pth"
    save(path, state)
    return load(path)


@pytest.mark.parametrize("number", range(6))
def test_logits_boxes_and_confidences_are_those_of_mmdetection(network: Any, number: int) -> None:
    theirs = np.load(ANSWERS / f"{number}.npz")
    frame = prepared(drawn(number, *map(int, theirs["size"])))
    assert frame.size == (*theirs["resized"],) and frame.pixels.shape[1:] == (*theirs["padded"],)
    np.testing.assert_allclose(frame.pixels[:, ::97, ::97], theirs["input"], atol=1e-6)
    with torch.inference_mode():
        output = network(pixel_values=torch.from_numpy(frame.pixels)[None])
    classes, masks = output.class_queries_logits[0], output.masks_queries_logits[0]
    np.testing.assert_allclose(classes, theirs["classes"], atol=1e-4)
    whole = torch.nn.functional.interpolate(masks[None], frame.pixels.shape[1:], mode="bilinear")[0]
    np.testing.assert_allclose(whole[:, ::64, ::64], theirs["masks"], atol=1e-4)

    ours = detected(frame, classes, masks, COCO, 0.0)
    # an object without a pixel has the confidence 0
    found = theirs["found"][theirs["found"][:, 5] > 0]
    assert sum(map(len, ours.values())) == len(found) and len({*map(tuple, found[:, 1:5])}) > 10, (
        "not one box alone"
    )
    for n, name in enumerate(COCO):
        of_class = found[found[:, 0] == n]
        # the most confident first, as GenEval sorts them
        for one, (*box, confidence, area) in zip(
            ours.get(name, []), of_class[of_class[:, 5].argsort()[::-1], 1:], strict=True
        ):
            assert one.confidence == pytest.approx(confidence, abs=1e-4)
            assert one.box == pytest.approx(box, abs=0.5)
            assert one.mask.sum() == pytest.approx(area, abs=10)


def test_every_tensor_of_the_checkpoint_has_one_place_in_the_network(
    network: Any, state: Mapping[str, Any]
) -> None:
    tensors, unknown = converted(state)
    indices = [name for name in state if name.endswith("relative_position_index")]
    # of q, k and v come three tensors: one for each block of Swin, one for each layer of the decoder
    projections = [name for name in state if ".qkv." in name or ".attentions.1.attn.in_proj_" in name]
    assert not unknown
    assert len(tensors) == len(state) - len(indices) + 2 * len(projections)
    assert sum(one.numel() for one in tensors.values()) == sum(
        one.numel() for name, one in network.named_parameters() if ".swin.layernorm." not in name
    )


@pytest.mark.parametrize(
    ("size", "resized", "padded"),
    [
        ((512, 512), (800, 800), (800, 800)),
        ((1024, 1024), (800, 800), (800, 800)),
        ((1328, 1328), (800, 800), (800, 800)),
        ((768, 1360), (753, 1333), (768, 1344)),
        ((1104, 1472), (800, 1067), (800, 1088)),
        ((1664, 928), (1333, 743), (1344, 768)),
        ((832, 1248), (800, 1200), (800, 1216)),
        ((1024, 768), (1067, 800), (1088, 800)),
    ],
)
def test_an_image_is_resized_and_padded_with_grey_before_it_is_normalised(
    size: Any, resized: Any, padded: Any
) -> None:
    frame = prepared(Image.new("RGB", size[::-1], "white"))
    assert (frame.size, frame.pixels.shape[1:]) == (resized, padded)
    rest = frame.pixels[:, resized[0] :, :].reshape(3, -1).T
    assert np.abs(rest - (0.0741, 0.2052, 0.4265)).max(initial=0) < 1e-4


def test_the_confidence_is_the_probability_times_the_mean_inside_the_mask() -> None:
    masks = torch.full((1, 4, 4), -2.0)
    masks[0, 1:3, 0:3] = 2.0
    classes = torch.tensor([[0.95, 0.05]]).log()
    frame = Frame(np.zeros((3, 4, 4), np.float32), (4, 4), Image.new("RGB", (4, 4)))
    [one] = detected(frame, classes, masks, ["cat"], 0.3)["cat"]
    assert one.box == (0, 1, 3, 3) and one.confidence == pytest.approx(0.8368, abs=5e-5)


def test_patch_merging_reads_its_channels_in_the_order_of_transformers() -> None:
    order = merged(torch.arange(20)).tolist()
    assert order == [0, 4, 8, 12, 16, 2, 6, 10, 14, 18, 1, 5, 9, 13, 17, 3, 7, 11, 15, 19]
    assert merged(torch.arange(40).reshape(2, 20))[1].tolist() == [20 + n for n in order]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backbone.norm0.weight": "backbone.norms.0.weight"}, "it has unexpected backbone.norms.0.weight;"),
        ({"panoptic_head.query_feat.weight": "panoptic_head.x"}, "it has unexpected panoptic_head.x;"),
        (
            {"backbone.norm0.weight": ""},
            "it lacks model.pixel_level_module.encoder.hidden_states_norms.stage1.weight;",
        ),
    ],
)
def test_a_checkpoint_with_other_names_is_refused(
    state: dict[str, Any], change: Mapping[str, str], words: str, tmp_path: Path
) -> None:
    """mmcv only logs it, and leaves weights random: GenEval's program once ran so, with the file of mmdetection 3."""
    changed = {change.get(name, name): tensor for name, tensor in state.items()}
    changed.pop("", None)
    save(tmp_path / "other.pth", changed)
    with pytest.raises(CellFailure) as refused:
        load(tmp_path / "other.pth")
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_the_default_file_must_have_the_published_hash(
    state: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "random.pth", state)
    monkeypatch.setitem(WEIGHTS, "mask2former_mmdet", str(tmp_path / "random.pth"))
    with pytest.raises(CellFailure, match="is not the file that OpenMMLab has published"):
        load(tmp_path / "random.pth")


@pytest.mark.parametrize(
    ("device", "here", "is_official", "words"),
    [
        ("cpu", 0.9, True, ""),
        ("cuda:0", 0.9, True, ""),
        ("cuda:0", 0.4, True, "confidences on cuda:0 differ by 0.50 from the CPU's"),
        ("cuda:0", math.nan, False, "confidences on cuda:0 differ by nan"),
        # random weights know no objects, but compute the same everywhere
        ("cuda:0", 0.4, False, "confidences on cuda:0 differ by 0.50 from the CPU's"),
        ("cpu", 0.0, False, ""),
    ],
)
def test_a_detector_that_differs_from_the_cpu_scores_nothing(
    device: str, here: float, is_official: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confidences(network: Any, pictures: Any, classes: Any, place: str) -> dict[tuple[int, str], float]:
        return {(0, PICTURED[0]): here if place == device else 0.9}

    monkeypatch.setattr(detector_check, "_confidences", confidences)
    network = torch.nn.Module()
    monkeypatch.setattr(network, "to", lambda place: network)
    if not words:
        check_detector(network, COCO, device, is_official=is_official)
        return
    with pytest.raises(CellFailure) as lost:
        check_detector(network, COCO, device, is_official=is_official)
    assert words in str(lost.value) and "EVAL_GPU_MAP" in str(lost.value)


def test_official_weights_that_know_no_drawn_object_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detector_check, "_confidences", lambda *given: {(0, PICTURED[0]): 0.2})
    check_detector(torch.nn.Module(), COCO, "cpu", is_official=True)
    said = "".join(capsys.readouterr())
    assert "at most 0.20 sure of a drawn stop sign, clock, traffic light" in said
