"""GPUs in the plan: of a replica, of all replicas, of an evaluation; mistakes are told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.cli.command_line import parse
from imageevalkit.common.errors import UserError, note_once
from imageevalkit.extras.dry_run.describe import gpus_of
from imageevalkit.jobs.plan import GenerateOrder, Job, Plan
from imageevalkit.plan import gpus
from imageevalkit.plan.config import Config
from imageevalkit.plan.options import resolve
from imageevalkit.plan.planner import make_plan
from tests.support.fake_gpus import divided, install_fake_gpus


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    gpus.visible.cache_clear()
    yield
    gpus.visible.cache_clear()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs, and a model "big" whose entry asks for two."""
    uuids = [f"GPU-{n}" for n in range(4)]
    monkeypatch.setenv("FAKE_NVML", install_fake_gpus(tmp_path, uuids))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    entries = MODEL_SETTINGS["t2i"]
    monkeypatch.setitem(entries, "big", {**entries["diffusers"], "gpus": 2})


def plan(model: str, *words: str, gpus: str | None = None, **config: str) -> Plan:
    maps = {"INFER_GPU_MAP": {} if gpus is None else {model: gpus}}
    return _plan(model, words, maps, config)


def _plan(
    model: str, words: tuple[str, ...], maps: dict[str, dict[str, str]], config: dict[str, str]
) -> Plan:
    given = Config(scalars=config, maps=maps)
    names = ["--model_names", model, "--ds_names", "quicktext"]
    return make_plan(resolve(parse([*names, *words]), given), given)


@pytest.mark.parametrize(
    ("model", "gpus", "words", "each", "most", "shown"),
    [
        ("diffusers", None, (), 1, 4, "up to 4 replicas × 1 GPU"),
        ("diffusers", "2", (), 2, 4, "up to 2 replicas × 2 GPUs"),
        ("diffusers", "0", (), 0, 0, "0 GPUs"),
        ("diffusers", None, ("--replicas", "9"), 1, 4, "up to 4 replicas × 1 GPU"),
        ("big", None, (), 2, 4, "up to 2 replicas × 2 GPUs"),
        ("big", None, ("--replicas", "1"), 2, 2, "1 replica × 2 GPUs"),
        ("reference-noise", None, ("--replicas", "3"), 0, 0, "3 replicas on the CPU"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_gpus_of_a_model(
    model: str, gpus: str | None, words: tuple[str, ...], each: int, most: int, shown: str
) -> None:
    job = plan(model, *words, gpus=gpus).jobs[0]
    replicas = int(words[1]) if words else None
    assert (job.gpus, job.gpus_at_most) == (each, most)
    assert isinstance(job.order, GenerateOrder)
    assert (job.order.replica_gpus, job.order.replicas) == (each, replicas)
    assert gpus_of(job) == shown


def test_without_a_gpu_a_model_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = plan("diffusers", REPLICAS="2").jobs[0]
    assert (job.gpus, job.gpus_at_most, gpus_of(job)) == (0, 0, "2 replicas on the CPU")
    with pytest.raises(UserError, match=r"one replica of the model needs 1 GPU.*this machine shows 0"):
        plan("diffusers", gpus="1")


@pytest.mark.usefixtures("machine")
def test_seconds_that_an_image_may_take_are_those_of_the_configuration() -> None:
    for text, seconds in (("", None), ("0.5", 0.5)):
        order = plan("diffusers", ITEM_TIMEOUT=text).jobs[0].order
        assert isinstance(order, GenerateOrder) and order.item_timeout == seconds
    with pytest.raises(UserError, match=r"^ITEM_TIMEOUT in config.sh is '0': use a number above 0"):
        plan("diffusers", ITEM_TIMEOUT="0")


@pytest.mark.usefixtures("machine")
def test_gpus_of_other_jobs() -> None:
    jobs = _plan("diffusers", (), {"EVAL_GPU_MAP": {"quicktext": "2"}}, {}).jobs
    assert [(job.stage, job.gpus, job.gpus_at_most) for job in jobs] == [
        ("generate", 1, 4),
        ("evaluate", 2, 2),
        ("report", 0, 0),
    ]
    assert gpus_of(jobs[1]) == "2 GPUs"
    assert gpus_of(Job("generate:x", "generate", [], [], [], order=GenerateOrder(True, {}))) == "0 GPUs"


@pytest.mark.parametrize(
    ("variable", "name", "says"),
    [
        ("INFER_GPU_MAP", "difusers", "unknown model 'difusers' (did you mean 'diffusers'?)"),
        ("EVAL_ENV_MAP", "geneva", "unknown benchmark 'geneva' (did you mean 'geneval'?)"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_an_unknown_name_in_a_map_is_a_note(
    capsys: pytest.CaptureFixture[str], variable: str, name: str, says: str
) -> None:
    """The config.sh of another toolkit has benchmarks that this one lacks: a run that does not ask for them starts."""
    note_once.cache_clear()
    assert _plan("diffusers", (), {variable: {name: ""}}, {}).jobs
    told = capsys.readouterr().err
    assert told.startswith(f"note: {variable} (config.sh, config.local.sh) names {says}")


@pytest.mark.parametrize(
    ("maps", "words", "config", "says"),
    [
        (
            {"INFER_GPU_MAP": {"diffusers": "two"}},
            (),
            {},
            "['diffusers'] in config.sh is 'two': use a whole number",
        ),
        (
            {"EVAL_GPU_MAP": {"quicktext": "5"}},
            (),
            {},
            "EVAL_GPU_MAP['quicktext'] in config.sh: evaluating the benchmark needs 5 GPU(s), but this machine shows 4",
        ),
        ({}, ("--replicas", "0"), {}, "--replicas is '0': use a whole number of at least 1"),
        (
            {},
            (),
            {"GPU_MIN_FREE_MEMORY": "lots"},
            "GPU_MIN_FREE_MEMORY in config.sh is 'lots': use a percentage",
        ),
        (
            {},
            ("--custom_model_kwargses", "batch_size=0"),
            {},
            "model 'diffusers': batch_size is '0': use a whole",
        ),
        ({}, (), {"SHARE_GPUS": "ture"}, "SHARE_GPUS in config.sh is 'ture': use true or false"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_mistakes(
    maps: dict[str, dict[str, str]], words: tuple[str, ...], config: dict[str, str], says: str
) -> None:
    with pytest.raises(UserError) as caught:
        _plan("diffusers", words, maps, config)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_replica_over_mig_devices_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = install_fake_gpus(tmp_path, [divided("GPU-0", "MIG-a", "MIG-b"), "GPU-1"])
    monkeypatch.setenv("FAKE_NVML", machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = plan("diffusers").jobs[0]
    assert (job.gpus, job.gpus_at_most) == (1, 3), "two MIG devices and a whole GPU"
    with pytest.raises(
        UserError, match=r"needs 2 GPU\(s\), but a process sees only one MIG device, and of whole"
    ):
        plan("diffusers", gpus="2")
