"""The state of each item of a cell and the items left to generate: all stages agree."""

from __future__ import annotations

import pytest

from imageevalkit.common.atomic import part_path
from imageevalkit.common.errors import CellFailure
from imageevalkit.extras.dry_run.questions import images_to_come
from imageevalkit.generate.cell_run import GenerateOptions
from imageevalkit.generate.model import Refused
from imageevalkit.store import fingerprint as fp
from imageevalkit.store.cell import Cell
from imageevalkit.store.records import last_records
from imageevalkit.store.states import scorable, survey, survey_images
from tests.support.generation import SETTING, FakeDataset, FakeModel, generate, items, picture

CELL = Cell("m", "fake")
TODAY = fp.settings_of("t2i", SETTING)
OTHER = fp.settings_of("t2i", {**SETTING, "model_kwargs": {"guidance_scale": 5}})


def fault(prompt: str) -> None:
    if prompt in ("prompt 1", "prompt 2"):
        raise Refused("no") if prompt == "prompt 1" else ValueError("boom")


@pytest.fixture(autouse=True)
def cell() -> None:
    """Returns a cell of six items: generated, refused, blank, changed, put there by hand, untouched."""
    generate(FakeModel(fault), FakeDataset(4), GenerateOptions(blank_on_error=True))
    folder = CELL.folder / "images"
    (folder / "00003.png").write_bytes((folder / "00003.png").read_bytes()[:-20])
    picture("by hand", 1).save(folder / "00004.png")


def test_each_item_has_one_state() -> None:
    states = list(survey_images(CELL, items(FakeDataset(6))).states.values())
    assert [state.status for state in states] == [
        *("generated", "refused", "blank", "corrupt", "generated", "failed")
    ]
    assert [state.reason for state in states[1:4]] == [
        *("Refused: no", "ValueError: boom", "the file was changed or truncated since it was generated")
    ]
    assert [state.made_here for state in states] == [True, True, True, True, False, False]
    assert [state.attempted for state in states] == [True] * 5 + [False]
    by_id = {state.item.id: state for state in states}
    assert [int(id[-1]) for id in scorable(by_id, blank=False)] == [0, 4]
    assert [int(id[-1]) for id in scorable(by_id, blank=True)] == [0, 2, 4]


def test_what_is_left_follows_from_the_settings() -> None:
    def steps(settings: dict[str, object]) -> list[str]:
        return [state.step for state in survey(CELL, items(FakeDataset(6)), settings).states.values()]

    assert steps(TODAY) == ["reuse", "refused", "make", "repair", "stale", "make"]
    assert steps(OTHER) == ["stale", "make", "make", "repair", "stale", "make"], "refused by other settings"
    found = survey(CELL, items(FakeDataset(6)), TODAY)
    assert [item.prompt for item in found.to_make(overwrite=False, retry_refused=False)] == [
        *("prompt 2", "prompt 3", "prompt 5")
    ]
    assert len(found.to_make(overwrite=True, retry_refused=True)) == 5
    assert found.explain_stale() == "no record describes the generation of the image: 1 image is stale"


def test_a_plan_knows_the_images_to_come() -> None:
    def planned(settings: dict[str, object], overwrite: bool) -> list[str]:
        states = images_to_come(CELL, items(FakeDataset(6)), settings, overwrite)
        return [
            f"{id[-1]}{'+' if state.sha256.startswith('to come') else ''}" for id, state in states.items()
        ]

    assert planned(TODAY, overwrite=False) == ["0", "2+", "3+", "4", "5+"]
    assert planned(TODAY, overwrite=True) == ["0", "2+", "3+", "4+", "5+"]
    assert planned(OTHER, overwrite=True) == ["0+", "1+", "2+", "3+", "4+", "5+"]


def test_an_image_whose_last_step_was_cut_off_is_whole_for_all() -> None:
    path = CELL.folder / "images/00000.png"
    path.rename(part_path(path))
    first = items(FakeDataset(1))
    [planned] = images_to_come(CELL, first, TODAY).values()
    assert planned.sha256 == last_records(CELL)["images/00000"].image_sha256
    assert not path.exists(), "a plan touches nothing"
    [judged] = survey_images(CELL, first).states.values()
    assert (judged.status, judged.sha256, path.is_file()) == ("generated", planned.sha256, True)


def test_what_cannot_be_read_is_not_paid_for_again() -> None:
    path = CELL.folder / "images/00000.png"
    path.unlink()
    path.symlink_to("/proc/self/mem")  # as of a failing disk: a file that opens and cannot be read
    for look in (survey, images_to_come):  # a plan says what the run will
        with pytest.raises(CellFailure, match=r"00000\.png cannot be read: Input/output error"):
            look(CELL, items(FakeDataset(1)), TODAY)
    [judged] = survey_images(CELL, items(FakeDataset(1))).states.values()
    assert (judged.status, judged.reason) == ("corrupt", "the image cannot be read: Input/output error")
