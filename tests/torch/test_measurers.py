"""The measurers of GenEval, HPSv2, GenAI-Bench and DPG-Bench on small random networks, in the layouts of the published
ones, beside plain calls of their libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.beside import run_beside


def run(module: str, folder: Path, *packages: str) -> dict[str, Any]:
    """Returns the output of a module of tests.support, which runs with ``packages``."""
    found: dict[str, Any] = json.loads(run_beside(module, folder, packages=packages).stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("sentencepiece", reason="bash test.sh installs it")
    return run("measurer_run", tmp_path_factory.mktemp("measurers"), "dreamsim")


@pytest.fixture(scope="module")
def mplug(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("mplug_run", tmp_path_factory.mktemp("mplug"), "mplug", "dreamsim")


def test_detections_are_those_of_the_network_in_the_pixels_of_the_image(said: Mapping[str, Any]) -> None:
    found = said["mask2former"]
    # 300 x 200 as 1200 x 800, the shorter side, which are multiples of 32 but for 1200
    assert found["input"] == [[3, 800, 1216], [800, 1200]]
    objects = found["said"][0]["objects"]
    assert objects.keys() == found["best"].keys() and objects
    for name, boxes in objects.items():
        assert boxes[0][4] == pytest.approx(found["best"][name], abs=1e-4)
        assert [box[4] for box in boxes] == sorted((box[4] for box in boxes), reverse=True)
        assert all(0 <= x1 < x2 <= 300 and 0 <= y1 < y2 <= 200 for x1, y1, x2, y2, _ in boxes)


def test_a_detector_leaves_no_tensor_of_its_images_behind(said: Mapping[str, Any]) -> None:
    """transformers' cache of position embeddings outlives its model."""
    assert said["mask2former"]["left"] < 10_000


def test_weights_that_are_not_finite_are_no_verdict(said: Mapping[str, Any]) -> None:
    assert said["no numbers"] == [None, "the encoder gave no finite number"]


def test_an_encoder_is_official_with_its_default_weights_alone(said: Mapping[str, Any]) -> None:
    assert said["official"] == {
        "hpsv2": [False, True],
        "flant5": [False, True],
        # the official detector is mmdetection's
        "geneval": [False, False],
    }


def test_colours_are_told_of_the_classes_that_were_asked_about(said: Mapping[str, Any]) -> None:
    for answer in said["mask2former"]["said"]:
        for name, count in (("cat", 1), ("dog", 2)):
            there = answer["objects"].get(name, [])[:count]
            assert len(answer["colors"].get(name, [])) == len(there)
            assert set(answer["colors"].get(name, [])) <= {"red", "blue", "green"}
        assert "cup" not in answer["colors"]


def test_colours_have_the_logits_of_open_clip(tmp_path: Path) -> None:
    found = run("geneval_colors_run", tmp_path, "dreamsim")
    assert len(found["ours"]) == len(found["theirs"]) == 16
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
    assert len({round(logits[0], 2) for logits in found["theirs"]}) > 8, "the crops differ"


def test_a_preference_is_the_cosine_in_percent_by_version(said: Mapping[str, Any]) -> None:
    found = said["hpsv2"]
    assert [one["v2.1"] for one in found["said"]] == pytest.approx(found["plain"], abs=1e-3)
    assert all(one["v2.0"] != one["v2.1"] for one in found["said"])
    # 1024 x 768 as 224 x 168, and 1000 x 667 as 224 x 149, in the middle of black
    assert found["shapes"] == [[3, 224, 224]] * 2
    assert (found["rows"], found["first_row"]) == ([168, 149], [28, 37])


def test_a_vqascore_is_the_geometric_mean_of_yes_and_the_end(said: Mapping[str, Any]) -> None:
    found = said["clip_flant5"]
    # bfloat16 rounds otherwise with other images in the batch
    assert found["said"] == pytest.approx(found["plain"], rel=0.05)
    assert found["ends"] == [1, 1], "both texts around the image end as a text does"
    assert found["labels"] == 2 and found["patches"][0] == 16
    rows, tokens = found["vocabulary"]
    assert rows == tokens + 28, "the plain probabilities are without the logits that have no token"


def test_weights_that_are_not_those_of_the_model_are_refused_in_one_line(said: Mapping[str, Any]) -> None:
    words = {"lacks": "it lacks ", "unexpected": "it has unexpected ", "shape": "it has another shape of "}
    assert len(said["refused"]) == 5
    for case, why in said["refused"].items():
        file, name, how = case.split()
        assert f"/{file.partition('/')[0]}" in why and "\n" not in why
        # transformers has other names for CLIP's by now
        assert words[how] + name.removeprefix("vision_model.") in why, (case, why)


def test_mplug_says_what_modelscopes_network_says(mplug: Mapping[str, Any]) -> None:
    assert mplug["ours"] == mplug["theirs"]
    # weights of the user's own are not the official ones
    assert mplug["official"] == [True, False]
    # of each image the last two questions are one, as far as they are read
    answers = [mplug["ours"][n : n + 4] for n in (0, 4, 8)]
    assert all(one[2] == one[3] for one in answers)
    assert len({*map(tuple, answers)}) == 3 and all(len({*one}) >= 2 for one in answers)
    assert mplug["images"] == [3, 12], "an image is looked at once"
    assert "it lacks fusion_encoder.encoder.layer.1.output.dense.weight;" in mplug["damaged"]
