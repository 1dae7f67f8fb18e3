"""The lists of packages: pinned, complete for the modules that run with them, and resolvable."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from custom_models.load_model import MODEL_SETTINGS
from imageevalkit.extras.export.trackers import PACKAGES
from imageevalkit.registry import benchmark_tasks
from imageevalkit.store.cell import REPO
from tests.support.checkout import run_command
from tests.support.imports import canonical, distributions_of, modules_below, third_party

LISTS = sorted(
    str(path.relative_to(REPO / "requirements")) for path in (REPO / "requirements").rglob("*.txt")
)
MODEL_LISTS = [name for name in LISTS if name.startswith("model/")]
BENCHMARK_LISTS = {
    benchmark: name
    for name in LISTS
    if name.startswith("benchmark/")
    for header in re.findall("^# also for: (.*)$", (REPO / "requirements" / name).read_text(), re.MULTILINE)
    or [""]
    for benchmark in (Path(name).stem, *header.split())
}

TRIG = (
    *("eval_models/encoders/clip_metrics", "eval_models/encoders/vqascore", "eval_models/image_metrics"),
    *("imageevalkit/judges/client", "eval_models/vlm"),
)
PREFER = (
    *(f"eval_models/encoders/{name}" for name in ("clip", "clip_metrics", "imagereward", "hpsv3")),
    "imageevalkit/judges/client",
)
# What evaluates in the environment of a benchmark; of the others a judge behind an API.
EVALUATORS = {
    "longtext": ("eval_models/ocr",),
    "quicktext": ("eval_models/ocr",),
    "quickshapes": ("eval_models/ocr",),
    "oneig": ("eval_models/ocr", "eval_models/encoders", "imageevalkit/judges/client", "eval_models/vlm"),
    "oneig-zh": ("eval_models/ocr", "eval_models/encoders", "imageevalkit/judges/client", "eval_models/vlm"),
    "geneval": ("eval_models/encoders/mask2former", "eval_models/encoders/mask2former_mmdet"),
    "genai": ("eval_models/encoders/vqascore", "imageevalkit/judges/client", "eval_models/vlm"),
    "hpsv2": ("eval_models/encoders/clip",),
    "prefer": PREFER,
    "cvtg2k": ("eval_models/encoders/clip_metrics", "eval_models/ocr", "eval_models/paddle_ocr"),
    "dpgbench": ("eval_models/mplug", "imageevalkit/judges/client"),
    **dict.fromkeys(("trig-t2i", "trig-p2p", "trig-s2p"), TRIG),
}

# Modules of the authors' code that prefetch brings, by the list of its environment.
AUTHORS = {
    "janus": ("janus",),
    # with a transformers of its own
    "orthus": ("models", "transformers"),
    "show-o": ("models", "training"),
    "vila-u": ("vila_u",),
}

# Of --export: whoever has such a tracker has its package.
TRACKERS = {*PACKAGES.values()}

# Only the replies of an API are images of strangers, and only there and in prefetch requests are sent.
NO_API = (
    "imageevalkit.api",
    "imageevalkit.assets.http",
    "imageevalkit.common.images",
    "imageevalkit.judges.api",
    "imageevalkit.judges.client",
    "imageevalkit.judges.thoughts",
)
# Only what runs from weights looks for them.
NO_WEIGHTS = (
    *("eval_models.encoders", "eval_models.vlm"),
    "imageevalkit.assets.weights",
)
# Few users prefetch what is Parquet, and its reader is large.
PARQUET = ("imageevalkit.assets.data",)


# --- pinned ---

_PINNED = re.compile(r"([\w.-]+)==([0-9][\w.!+]*)")
# one build, where PyPI has none that the authors' code runs with
_WHEEL = re.compile(r"([\w.-]+) @ (https://\S+\.whl)")


def lines_of(name: str) -> list[str]:
    """The lines of a list and of those it includes, without comments."""
    lines = []
    path = REPO / "requirements" / name
    for line in path.read_text().splitlines():
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        if bare.startswith("-r "):
            included = (path.parent / bare[3:]).resolve()
            lines += lines_of(str(included.relative_to(REPO / "requirements")))
        elif bare:
            lines.append(bare)
    return lines


def listed(name: str) -> set[str]:
    """The distributions of a list."""
    return {canonical(re.split(r"==| @ ", line)[0]) for line in lines_of(name)}


@pytest.mark.parametrize("name", LISTS)
def test_every_package_is_pinned_once(name: str) -> None:
    lines = lines_of(name)
    versions: dict[str, set[str]] = {}
    for line in lines:
        pinned = _PINNED.fullmatch(line) or _WHEEL.fullmatch(line)
        assert pinned, line
        versions.setdefault(canonical(pinned[1]), set()).add(pinned[2])
    assert versions
    assert not {package: found for package, found in versions.items() if len(found) > 1}


# --- complete ---


@functools.cache
def environments(variable: str) -> dict[str, str]:
    """A map of config.sh as it is shipped."""
    script = '. utils/config_defaults.sh; config_map "$0" "$PWD/config.sh"'
    words = run_command(["bash", "-c", script, variable], cwd=REPO, status=0).stdout.split("\0")
    return dict(zip(words[::2], words[1::2], strict=False))


def model_modules(environment: str) -> list[str]:
    """The modules of the classes of all models in an environment."""
    return [
        f"custom_models{entry['module']}"
        for models in MODEL_SETTINGS.values()
        for model, entry in models.items()
        if environments("INFER_ENV_MAP").get(model) == environment
    ]


# what only the driver's report runs
OF_THE_REPORT = (
    "imageevalkit.report.comparison",
    "imageevalkit.report.leaderboard",
    "imageevalkit.report.ranks",
    "imageevalkit.extras.compare.power",
)


def evaluation(benchmarks: list[str], evaluators: tuple[str, ...]) -> list[str]:
    parts = [module for part in evaluators for module in (modules_below(part) or [part.replace("/", ".")])]
    scoring = [
        module for name in benchmarks for module in modules_below(f"benchmarks/{name.replace('-', '_')}")
    ]
    return ["imageevalkit.evaluate.__main__", *scoring, *parts]


def missing(name: str, needed: dict[str, str]) -> dict[str, str]:
    """Returns the ``needed`` modules that a list does not install, each with a place of its import."""
    there = listed(name)
    return {module: place for module, place in needed.items() if there.isdisjoint(distributions_of(module))}


def test_the_drivers_list_is_complete() -> None:
    modules = [
        *modules_below("imageevalkit"),
        *modules_below("utils"),
        *modules_below("infer/custom_datasets"),
        *("generate", "worker"),
        *model_modules(""),
        *evaluation(list(benchmark_tasks()), ("eval_models/ocr", "imageevalkit/judges/client")),
    ]
    needed = third_party(modules, idle=(*NO_WEIGHTS, *PARQUET))
    assert {"PIL", "httpx2", "jinja2", "cv2", *TRACKERS} <= set(needed)
    assert set(missing("driver.txt", needed)) == TRACKERS


def test_what_reads_parquet_has_a_list_of_its_own() -> None:
    needed = third_party(PARQUET)
    assert "pyarrow" in needed and "pyarrow" not in listed("driver.txt")
    assert not missing("parquet.txt", {"pyarrow": needed["pyarrow"]})


def test_a_worker_starts_where_nothing_but_pillow_and_tqdm_is_installed() -> None:
    """Only the parent of a generate job may use the driver's packages."""
    whole = ("worker", "imageevalkit", "custom_models")
    assert set(third_party(["worker"], idle=whole)) <= {"PIL", "tqdm"}


@pytest.mark.parametrize("name", MODEL_LISTS)
def test_a_models_list_is_complete(name: str) -> None:
    classes = model_modules(Path(name).stem)
    assert classes, "no model of config.sh's INFER_ENV_MAP runs in this environment"
    needed = third_party(["worker", *classes], idle=NO_API)
    assert {"PIL", "torch"} <= set(needed)
    authors = AUTHORS.get(Path(name).stem, ())
    assert not missing(name, {module: place for module, place in needed.items() if module not in authors})


@pytest.mark.parametrize("benchmark", BENCHMARK_LISTS)
def test_a_benchmarks_list_is_complete(benchmark: str) -> None:
    name = BENCHMARK_LISTS[benchmark]
    assert f"benchmark/{benchmark_tasks()[Path(name).stem]}/{Path(name).stem}.txt" == name
    evaluators = EVALUATORS.get(benchmark, ("imageevalkit/judges/client",))
    without = [] if "imageevalkit/judges/client" in evaluators else [*NO_API]
    of_weights = ("eval_models/encoders", "eval_models/mplug")
    without += [] if any(part.startswith(of_weights) for part in evaluators) else [*NO_WEIGHTS]
    without += OF_THE_REPORT
    if "imageevalkit/judges/client" in evaluators:
        without.append("imageevalkit.common.images")
    needed = third_party(evaluation([benchmark], evaluators), idle=without)
    assert "PIL" in needed and len(needed) >= 3
    assert not missing(name, needed)


def test_the_list_of_a_judge_in_transformers_is_complete() -> None:
    # no judge can replace the program of quickshapes, which needs numpy and scipy
    benchmarks = [name for name in benchmark_tasks() if name != "quickshapes"]
    modules = evaluation(benchmarks, ("eval_models/vlm",))
    needed = third_party(modules, idle=(*NO_API, *OF_THE_REPORT, "eval_models.encoders", "eval_models.ocr"))
    needed.pop("tqdm", None)
    assert {"torch", "transformers", "rapidfuzz"} <= set(needed)
    assert not missing("judge/transformers.txt", needed)


def test_the_list_of_the_tests_is_complete() -> None:
    needed = third_party([*modules_below("tests"), *modules_below("perf")])
    # beside the environment, for a few tests (see test.sh)
    apart = listed("test_dreamsim.txt") | listed("test_mplug.txt") | listed("test_nudenet.txt")
    lacking = {m for m in missing("test.txt", needed) if apart.isdisjoint(distributions_of(m))}
    # what the tests of adapters have stand-ins for
    assert lacking <= {
        "flash_attn",
        "paddleocr",
        # write the answers of mmdetection, outside of this tree
        "mmcv",
        "mmdet",
        *TRACKERS,
        *(module for modules in AUTHORS.values() for module in modules),
    }


def test_every_environment_of_config_has_a_list() -> None:
    assert set(environments("INFER_ENV_MAP").values()) - {""} == {Path(name).stem for name in MODEL_LISTS}
    known = {Path(name).stem for name in LISTS if name.startswith("judge/")} | BENCHMARK_LISTS.keys()
    assert set(environments("EVAL_ENV_MAP").values()) - {""} <= known
    assert set(benchmark_tasks()) <= known


def test_every_model_has_an_environment_in_config() -> None:
    models = {model for models in MODEL_SETTINGS.values() for model in models}
    assert models == set(environments("INFER_ENV_MAP"))


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_drivers_list_resolves_for_each_python_that_eval_sh_looks_for(
    python: str, tmp_path: Path
) -> None:
    uv = pytest.importorskip("uv", reason="uv of requirements/dev.txt is not installed")
    lines = (REPO / "requirements/driver.txt").read_text().splitlines()
    if python == "3.13":
        # make_env.sh installs these by themselves, whatever Python they declare
        lines = [line for line in lines if "ignore-requires-python" not in line]
    (tmp_path / "driver.txt").write_text("\n".join(lines))
    command = [
        *(uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", tmp_path / "driver.txt"),
        *("--python", sys.executable, "--no-python-downloads", "--python-version", python),
        # the metadata of wheels is enough: none is downloaded, and nothing is built; glibc of Debian 11 and newer
        *("--python-platform", "x86_64-manylinux_2_31", "--only-binary=:all:"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "fetch" in done.stderr:
        pytest.skip(f"PyPI cannot be reached: {done.stderr}")
    assert done.returncode == 0, done.stderr
