"""The generate engine: resume, staleness, failures, placeholders, coverage of every item."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from imageevalkit.api.limiter import Traffic
from imageevalkit.api.money import Bill
from imageevalkit.common.atomic import part_path
from imageevalkit.common.errors import CellFailure
from imageevalkit.common.images import encode
from imageevalkit.generate.cell_run import CellRun, GenerateOptions
from imageevalkit.generate.job import _Generation
from imageevalkit.generate.model import Generated, ImageModel, ItemFailed, ModelUnusable, Refused
from imageevalkit.generate.replicas import Chunk, ReplicatedModel
from imageevalkit.jobs.plan import COMPLETE, FAILED, INCOMPLETE, STALE, GenerateOrder
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import SampleEntry
from imageevalkit.store.records import last_records
from tests.support.generation import (
    FakeAsyncModel,
    FakeDataset,
    FakeModel,
    generate,
    items,
    picture,
    planned,
    settle,
)

CELL = Cell("m", "fake")


def records() -> list[dict[str, object]]:
    return [json.loads(line) for line in CELL.generation.read_text().splitlines()]


def contents() -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((CELL.folder / "images").iterdir())}


def test_records_say_everything_design_asks_for() -> None:
    assert generate(FakeModel(), FakeDataset(3)).state == COMPLETE
    record = last_records(CELL)["images/00001"]
    assert record.status == "ok"
    assert record.path == "images/00001.png"
    assert record.seed == 43  # 42 + the dataset's seed
    assert record.size == (8, 8)
    assert record.attempts == 1
    assert record.seed_honoured is None, "it cannot be known of a class that does not say"
    needed = "prompt_sha256 requested_size image_sha256 seconds error tokens price fingerprint"
    assert {*needed.split()} <= records()[1].keys()


def test_a_paid_edit_is_kept_when_its_source_goes_away_meanwhile(tmp_path: Path) -> None:
    source = tmp_path / "source.png"
    picture("source", 1).save(source)
    dataset: Any = FakeDataset(1)
    dataset.dataset_task = "edit"
    dataset.data = [EDIT | {"input_list": [Image.open(source), "red"]}]

    class Editor:
        def generate(self, given: Any, seed: int = 42) -> Image.Image:
            source.unlink()
            return picture("edited", seed)

    assert generate(Editor(), dataset).state == COMPLETE
    assert [record["status"] for record in records()] == ["ok"]


def test_resume_makes_only_what_is_missing() -> None:
    generate(FakeModel(), FakeDataset(5))
    before = contents()
    (CELL.folder / "images/00002.png").unlink()
    again = FakeModel()
    assert generate(again, FakeDataset(7)).state == COMPLETE
    assert again.calls == ["prompt 2", "prompt 5", "prompt 6"]
    assert {name: data for name, data in contents().items() if name in before} == before


def test_nothing_to_do_does_not_load_the_model() -> None:
    generate(FakeModel(), FakeDataset(2))

    class Loaded(AssertionError):
        pass

    def load(run: CellRun) -> None:
        raise Loaded

    assert settle(planned(FakeDataset(2)), load).state == COMPLETE


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:40] + b"\0" + data[41:]])
def test_damaged_images_are_made_again(damage: Callable[[bytes], bytes]) -> None:
    generate(FakeModel(), FakeDataset(3))
    before = contents()
    path = CELL.folder / "images/00001.png"
    path.write_bytes(damage(path.read_bytes()))
    again = FakeModel()
    generate(again, FakeDataset(3))
    assert again.calls == ["prompt 1"]
    assert contents() == before


def test_changed_kwarg_explains_and_changes_nothing() -> None:
    generate(FakeModel(), FakeDataset(3), guidance_scale=4.0)
    before, log = contents(), CELL.generation.read_bytes()
    model = FakeModel()
    outcome = generate(model, FakeDataset(4), guidance_scale=5.0)
    assert outcome.state == STALE
    assert "guidance_scale 4.0 → 5.0: 3 images are stale" in outcome.message
    assert "--overwrite" in outcome.message
    assert model.calls == []
    assert (contents(), CELL.generation.read_bytes()) == (before, log)


def test_overwrite_replaces_stale_images_and_only_those() -> None:
    generate(FakeModel(), FakeDataset(2), guidance_scale=4.0)
    assert (
        generate(FakeModel(), FakeDataset(2), GenerateOptions(overwrite=True), guidance_scale=5.0).state
        == COMPLETE
    )
    model = FakeModel()
    assert (
        generate(model, FakeDataset(3), GenerateOptions(overwrite=True), guidance_scale=5.0).state == COMPLETE
    )
    assert model.calls == ["prompt 2"]


def test_changed_prompt_is_stale() -> None:
    generate(FakeModel(), FakeDataset(2))
    changed = FakeDataset(2)
    changed.data[1]["prompt"] = "another prompt"
    assert "the benchmark's prompt changed: 1 image is stale" in generate(FakeModel(), changed).message


def sized(*sizes: tuple[int, int] | None) -> FakeDataset:
    """Items, each with the size that the benchmark asks for."""
    dataset = FakeDataset(len(sizes))
    dataset.data = [SampleEntry(entry, {}, size) for entry, size in zip(dataset.data, sizes, strict=True)]
    return dataset


def test_a_benchmark_asks_for_sizes_and_another_size_makes_an_image_stale() -> None:
    class Sized(FakeModel):
        takes_size = True

        def generate(self, prompt: str, seed: int = 42, size: tuple[int, int] | None = None) -> Image.Image:
            return picture(prompt, seed).resize(size or (8, 8))

    assert generate(Sized(), sized((32, 16), (16, 32), None)).state == COMPLETE
    shapes = [Image.open(CELL.folder / f"images/{n:05d}.png").size for n in range(3)]
    assert shapes == [(32, 16), (16, 32), (8, 8)]
    assert (
        "the benchmark's prompt changed: 1 image is stale"
        in generate(Sized(), sized((32, 16), (16, 31), None)).message
    )


def test_a_class_that_takes_no_size_chooses_its_own() -> None:
    assert generate(FakeModel(), sized((32, 16))).state == COMPLETE
    assert Image.open(CELL.folder / "images/00000.png").size == (8, 8)


def test_a_chunk_for_a_worker_has_one_size() -> None:
    chunks: list[Chunk] = []
    replicas: Any = SimpleNamespace(at_once=1, size=1, submit=chunks.append)

    async def ask() -> None:
        model = ReplicatedModel(replicas, "t2i", {}, "")
        model.batch_size = 4
        sizes = [(32, 16), (32, 16), (16, 32), None]
        asked = [asyncio.create_task(model.generate_async("a cat", 42, size)) for size in sizes]
        await asyncio.sleep(0)
        model._submit()
        for one in asked:
            one.cancel()

    asyncio.run(ask())
    assert [[item.size for item in chunk.items] for chunk in chunks] == [[(32, 16)] * 2, [(16, 32)], [None]]


def test_image_without_a_record_is_never_overwritten_silently() -> None:
    path = CELL.folder / "images/00000.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"somebody's work")
    assert generate(FakeModel(), FakeDataset(1)).state == STALE
    assert path.read_bytes() == b"somebody's work"


def test_killed_between_record_and_rename_is_finished_not_made_again() -> None:
    generate(FakeModel(), FakeDataset(2))
    path = CELL.folder / "images/00001.png"
    path.rename(part_path(path))
    model = FakeModel()
    assert generate(model, FakeDataset(2)).state == COMPLETE
    assert model.calls == []
    assert path.is_file()


def fail_on(number: int, error: Exception) -> FakeModel:
    def fault(prompt: str) -> None:
        if prompt == f"prompt {number}":
            raise error

    return FakeModel(fault)


def test_every_item_ends_ok_refused_or_failed() -> None:
    def fault(prompt: str) -> None:
        if prompt == "prompt 1":
            raise Refused("our policy says no", attempts=1)
        if prompt == "prompt 2":
            raise ValueError("boom")
        if prompt == "prompt 3":
            raise ItemFailed("gave up", attempts=6)

    outcome = generate(FakeModel(fault), FakeDataset(5))
    assert outcome.state == INCOMPLETE
    assert "2 of 5 images, 1 refused, 2 failed" in outcome.message
    last = last_records(CELL)
    assert [last[f"images/0000{i}"].status for i in range(5)] == ["ok", "refused", "failed", "failed", "ok"]
    assert last["images/00001"].error == {"class": "Refused", "text": "our policy says no"}
    assert last["images/00003"].attempts == 6
    again = FakeModel()
    generate(again, FakeDataset(5))
    assert again.calls == ["prompt 2", "prompt 3"], "refused items are settled, failed ones are tried again"


def test_unusable_model_stops_the_cell_at_once() -> None:
    model = fail_on(2, ModelUnusable("the key is wrong"))
    outcome = generate(model, FakeDataset(9))
    assert outcome.state == FAILED
    assert "the key is wrong (2 of 9 images)" in outcome.message
    assert len(model.calls) == 3


def test_max_cost_refuses_an_api_class_that_reports_no_costs() -> None:
    unused: Any = None
    run, traffic = planned(FakeDataset(1)).open(), Traffic(max_cost=5.0)
    run.setting = {**run.setting, "api": True}
    job = _Generation(unused, unused, unused, GenerateOrder(api=True, settings={}), 0.0)
    with pytest.raises(CellFailure, match="--max_cost cannot bound a model class"):
        job._bounded(ImageModel(), traffic, run)


def test_an_unusable_folder_is_found_before_an_image_is_paid_for() -> None:
    folder, model = CELL.folder / "images", FakeModel()
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    outcome = generate(model, FakeDataset(2))
    assert model.calls == []
    assert outcome.state == FAILED and f"no image can be stored in {folder}" in outcome.message


def test_model_that_always_fails_is_given_up() -> None:
    def fault(prompt: str) -> None:
        raise RuntimeError("CUDA error: device-side assert")

    model = FakeModel(fault)
    outcome = generate(model, FakeDataset(100))
    assert outcome.state == FAILED
    assert len(model.calls) == 10
    assert "stopped after 10 failed items in a row: RuntimeError: CUDA error" in outcome.message


def test_blank_placeholder_is_recorded_as_failed_and_tried_again() -> None:
    model = fail_on(1, ValueError("boom"))
    outcome = generate(model, FakeDataset(3), GenerateOptions(blank_on_error=True), width=32, height=16)
    assert outcome.state == INCOMPLETE
    record = last_records(CELL)["images/00001"]
    assert (record.status, record.placeholder) == ("failed", True)
    with Image.open(CELL.folder / "images/00001.png") as image:
        assert image.size == (32, 16)
        assert image.getextrema() == ((255, 255), (255, 255), (255, 255))
    again = FakeModel()
    assert generate(again, FakeDataset(3), width=32, height=16).state == COMPLETE
    assert again.calls == ["prompt 1"]


def test_concurrent_model_keeps_workers_in_flight_and_loses_nothing() -> None:
    def fault(prompt: str) -> None:
        if prompt.endswith("7"):
            raise Refused("no")

    model = FakeAsyncModel(fault)
    outcome = generate(model, FakeDataset(60), GenerateOptions(workers=8))
    assert model.most_in_flight == 8
    assert "54 of 60 images, 6 refused" in outcome.message
    assert len(last_records(CELL)) == 60
    assert sorted(model.calls) == sorted(f"prompt {i}" for i in range(60))


def test_server_bytes_of_the_right_format_are_kept_as_they_came() -> None:
    data = encode(picture("x", 1), Path("x.png"))

    class Server(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Generated:
            return Generated(data, seed_honoured=False, bill=Bill(0.04, {"total": 5}, 1), attempts=2)

    generate(Server(), FakeDataset(1))
    assert (CELL.folder / "images/00000.png").read_bytes() == data
    record = last_records(CELL)["images/00000"]
    assert (record.seed_honoured, record.tokens, record.attempts) == (False, {"total": 5}, 2)
    assert (record.price, record.maybe_billed) == (0.04, 1)


def test_server_bytes_of_another_format_become_the_benchmarks() -> None:
    class Server(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Generated:
            return Generated(encode(picture("x", 1), Path("x.png")))

    generate(Server(), FakeDataset(1, ".jpg"))
    with Image.open(CELL.folder / "images/00000.jpg") as image:
        assert image.format == "JPEG"


def test_truncated_server_bytes_are_a_failure() -> None:
    class Server(FakeModel):
        def generate(self, prompt: str, seed: int = 42) -> Generated:
            return Generated(encode(picture("x", 1), Path("x.png"))[:-10])

    assert generate(Server(), FakeDataset(2)).state == FAILED
    assert list((CELL.folder / "images").glob("*.png")) == []


T2I: dict[str, Any] = {"prompt": "p", "seed": 1, "image_save_path": "<MODEL_NAME>/fake/a.png"}
EDIT: dict[str, Any] = {
    "input_list": [Image.new("RGB", (8, 8)), "red"],
    "seed": 1,
    "image_save_path": "<MODEL_NAME>/fake/a.png",
}


def without(key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


@pytest.mark.parametrize(
    ("task", "entry", "says"),
    [
        ("t2i", ["p", 1], "it is ['p', 1], and must be a dict"),
        ("t2i", without("seed", T2I), "lacks seed"),
        ("t2i", T2I | {"input_list": []}, "has input_list beside prompt"),
        ("t2i", T2I | {"prompt": None}, "prompt is None, and must be a text that is not empty"),
        ("t2i", T2I | {"seed": 0.9}, "seed is 0.9, and must be a whole number"),
        ("t2i", T2I | {"image_save_path": "<MODEL_NAME>/other/a.png"}, "must lie in <MODEL_NAME>/fake/"),
        (
            "t2i",
            T2I | {"image_save_path": "<MODEL_NAME>/fake/images/00000.jpg"},
            "is also the path of entry 0",
        ),
        (
            "edit",
            EDIT | {"input_list": ["red", None]},
            "input_list[1] is None, and must be a text or a PIL image",
        ),
        ("edit", EDIT | {"input_list": ["red"]}, "input_list holds no image"),
    ],
)
def test_an_entry_that_breaks_the_contract_is_named_by_its_number(task: str, entry: Any, says: str) -> None:
    dataset: Any = FakeDataset(3)
    dataset.dataset_task = task
    if task == "edit":
        dataset.data = [EDIT | {"image_save_path": f"<MODEL_NAME>/fake/{n}.png"} for n in range(3)]
    dataset.data[2] = entry
    with pytest.raises(CellFailure, match=r"^benchmark fake, entry 2 \(data\[2\]\): ") as caught:
        items(dataset)
    assert says in str(caught.value)


def test_secrets_leave_error_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "sk-very-secret-key")
    generate(fail_on(0, ValueError("bad key sk-very-secret-key")), FakeDataset(2))
    assert "sk-very-secret-key" not in CELL.generation.read_text()
    assert "<API_KEY>" in CELL.generation.read_text()


def test_an_outage_in_the_middle_stops_the_cell() -> None:
    def fault(prompt: str) -> None:
        if int(prompt.split()[1]) >= 5:
            raise ItemFailed("HTTP 503 (gave up after 6 attempts)", attempts=6, transient=True)

    model = FakeModel(fault)
    outcome = generate(model, FakeDataset(100))
    assert outcome.state == INCOMPLETE, "a later run can go on"
    assert outcome.message.endswith("; the same command resumes here")
    assert "stopped after 10 failed items in a row" in outcome.message
    assert "(5 of 100 images)" in outcome.message
    assert len(model.calls) == 15


def test_prompts_that_fail_by_themselves_do_not_stop_a_working_model() -> None:
    def fault(prompt: str) -> None:
        if 5 <= int(prompt.split()[1]) < 45:
            raise ValueError("prompt too long")

    model = FakeModel(fault)
    assert generate(model, FakeDataset(50)).state == INCOMPLETE
    assert len(model.calls) == 50


def test_retrained_weights_at_the_same_path_are_stale(tmp_path: Path) -> None:
    weights = tmp_path / "checkpoint"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"a" * 100)
    from imageevalkit.store import fingerprint as fp
    from tests.support.generation import SETTING

    setting = {**SETTING, "model_path": str(weights)}
    before = fp.settings_of("t2i", setting)
    (weights / "model.safetensors").touch()
    assert fp.settings_of("t2i", setting) == before, "a copy is the same checkpoint"
    (weights / "model.safetensors").write_bytes(b"a" * 99 + b"b")
    assert "weights" in fp.explain(before, fp.settings_of("t2i", setting))


def test_a_failed_item_keeps_no_image_of_other_settings() -> None:
    generate(FakeModel(), FakeDataset(2), guidance_scale=1)
    generate(
        fail_on(1, ValueError("boom")), FakeDataset(2), GenerateOptions(overwrite=True), guidance_scale=2
    )
    assert not (CELL.folder / "images/00001.png").exists()


ON_RECORD = {
    "bagel": "BagelEdit BagelT2I",
    "blip_diffusion": "BlipDiffusion",
    "diffusers_edit": "DiffusersEdit",
    "diffusers_subject": "DiffusersSubject",
    "diffusers_t2i": "DiffusersT2I",
    "emu3": "Emu3T2I",
    "flux_ip_adapter": "FluxIPAdapter",
    "freediff": "FreeDiffEdit",
    "hq_edit": "HQEdit",
    "janus": "JanusT2I",
    "janus_authors": "JanusAuthorsT2I",
    "janusflow": "JanusFlowT2I",
    "lumina_dimoo": "LuminaDimooEdit LuminaDimooT2I",
    "ominicontrol": "OminiControlSubject",
    "omnigen": "OmniGenEdit OmniGenSubject",
    "openai_images": "OpenAIImagesEdit OpenAIImagesSubject OpenAIImagesT2I",
    "orthus": "OrthusT2I",
    "ovis_u1": "OvisU1Edit OvisU1T2I",
    "qwen_image": "QwenImage QwenImage2512",
    "reference_blank": "ReferenceBlank ReferenceBlankEdit ReferenceBlankSubject ReferenceIdentity",
    "reference_noise": "ReferenceNoise ReferenceNoiseEdit ReferenceNoiseSubject",
    "reference_typeset": "ReferenceTypeset ReferenceTypesetEdit ReferenceTypesetSubject",
    "shapes_tiny": "ShapesTiny",
    "show_o": "ShowOT2I",
    "ssr_encoder": "SSREncoderSubject",
    "vila_u": "VilaUT2I",
}
"""What the records of users' images call the shipped classes: a change makes those images stale."""


def test_the_records_of_images_know_a_class_by_the_name_that_it_was_first_recorded_by() -> None:
    from custom_models.load_model import MODEL_SETTINGS
    from imageevalkit.store import fingerprint as fp

    names = {
        f".model_utils.{module}:{name}" for module, classes in ON_RECORD.items() for name in classes.split()
    }
    entries = [(task, entry) for task, models in MODEL_SETTINGS.items() for entry in models.values()]
    assert {fp.settings_of(task, entry)["class"] for task, entry in entries} == names
    # an entry of the user's that has such a name finds the class, and its images stay, too
    for name in names:
        module, _, class_name = name.partition(":")
        moved = {"module": fp.module_now(module, class_name), "class": class_name, "model_path": ""}
        assert fp.settings_of("t2i", moved)["class"] == name
        assert any((entry["module"], entry["class"]) == (moved["module"], class_name) for _, entry in entries)
    assert fp.module_now(".model_utils.diffusers_t2i", "MyOwn") == ".model_utils.diffusers_t2i"


def test_another_commit_of_the_authors_code_makes_images_stale() -> None:
    from imageevalkit.store import fingerprint as fp
    from tests.support.generation import SETTING

    old, new = (
        fp.settings_of("t2i", {**SETTING, "assets": [{"code": "org/repo", "commit": commit, "to": "repo"}]})
        for commit in ("a" * 40, "b" * 40)
    )
    assert fp.explain(old, new) == f"asset repo {'a' * 40} → {'b' * 40}"
