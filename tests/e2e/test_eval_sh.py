"""bash eval.sh as a user types it: errors before anything starts, whole runs, and what happens when things break."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.support.checkout import (
    EDITS,
    FAILING,
    MANY,
    SLOW_NOISE,
    add_benchmark,
    add_model,
    environ,
    find_no_text,
    make_checkout,
    needs_driver_env,
    run_eval,
)
from tests.support.waiting import LONGEST_WAIT, wait_for


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return find_no_text(make_checkout(tmp_path / "checkout"))


def outcome_lines(run: subprocess.CompletedProcess[str]) -> str:
    return run.stdout + run.stderr


def result_of(checkout: Path, cell: str) -> dict[str, object]:
    return json.loads((checkout / "output" / cell / "result.json").read_text())


# ---- before anything starts ---------------------------------------------------------------------------------


def test_mistakes_are_one_line_and_status_2_before_anything_starts(checkout: Path) -> None:
    """tests/unit/test_mistakes.py has more of them."""
    for words, says in (
        (["--no_such_option"], "unknown option '--no_such_option'"),
        (["--model_names", "reference-noise", "--ds_names", "quicktxt"], "did you mean 'quicktext'?"),
        ([], "no models given"),
    ):
        run = run_eval(checkout, *words)
        assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
        assert says in run.stderr
    assert not (checkout / "output").exists()
    assert not (checkout / "log").exists()


def test_a_wrong_config_is_no_run_and_is_told(checkout: Path) -> None:
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--dry_run"]
    for config, says in (
        (b"exit 0\n", "config.local.sh ends the run: it calls exit"),
        (b"exit 7\n", "config.local.sh ends the run: it calls exit"),
        (b"DS_NAMES=('quicktext'\n", "config.local.sh has a syntax error"),
        (
            b"unset DS_NAMES EVAL_GPU_MAP\ndeclare -A JUDGE_MAP=(['quicktext']='no')\n",
            "unknown text reader 'no'",
        ),
        (b"MODEL_NAMES=('\xe4')\n", "not UTF-8"),
    ):
        (checkout / "config.local.sh").write_bytes(config)
        # the last one is about the names that the command line would replace
        run = run_eval(checkout, *words[0 if b"MODEL" not in config else 2 :])
        assert run.returncode == 2, config
        assert says in run.stderr


def test_broken_registry_is_one_line(checkout: Path) -> None:
    with (checkout / "infer/custom_models/load_model.py").open("a") as file:
        file.write("MODEL_SETTINGS['t2i']['x'] = {\n")
    run = run_eval(checkout, "--model_names", "reference-noise", "--ds_names", "quicktext")
    assert run.returncode == 2
    assert "infer/custom_models/load_model.py cannot be imported: SyntaxError" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("program", ["eval.sh", "utils/prefetch.sh"])
def test_help_and_slips_of_the_pen_need_no_environment_and_work_from_anywhere(
    checkout: Path, tmp_path: Path, program: str
) -> None:
    (checkout / ".venv").unlink(missing_ok=True)
    (checkout / "config.local.sh").write_text("exit 7\n")  # help does not read it
    for words, status, says in (
        (["--help"], 0, "--custom_model_kwargses"),
        (["--limit", "1", "-h"], 0, "--custom_model_kwargses"),
        (["--model_nmaes", "a", "--help"], 2, "did you mean '--model_names'?"),
        (["--model_names"], 2, "--model_names: expected one argument"),
    ):
        run = subprocess.run(
            ["bash", os.path.relpath(checkout / program, tmp_path), *words],
            cwd=tmp_path,
            env=environ(checkout),
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == status
        assert says in (run.stderr if status else run.stdout)
        assert run.stderr.count("\n") == bool(status)
    assert not (checkout / ".venv").exists()


def test_local_config_and_environment_precedence(checkout: Path) -> None:
    (checkout / "config.local.sh").write_text("MODEL_NAMES=('reference-noise')\nDS_NAMES=('nonsense')\n")
    assert "unknown benchmark 'nonsense'" in run_eval(checkout).stderr
    assert "unknown benchmark 'other'" in run_eval(checkout, "--ds_names", "other").stderr


# ---- whole runs ---------------------------------------------------------------------------------------------


@needs_driver_env
def test_small_run_end_to_end(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    words = [
        "--model_names",
        "reference-typeset; reference-noise;",
        "--ds_names",
        "quicktext",
        "--limit",
        "4",
    ]
    run = run_eval(checkout, *words, "--parallel", "true")
    assert run.returncode == 0, outcome_lines(run)
    typeset, noise = (result_of(checkout, f"{m}/quicktext") for m in ("reference-typeset", "reference-noise"))
    assert typeset["metrics"]["en"]["value"] > 0.9  # type: ignore[index]
    assert noise["metrics"]["en"]["value"] < 0.05  # type: ignore[index]
    assert typeset["limit"] == 4
    for name in ("leaderboard.csv", "leaderboard.md", "report.html"):
        assert (checkout / "output" / name).stat().st_size > 0
    logs = sorted(p.name for p in (checkout / "log/reference-noise").iterdir())
    assert [name.rsplit("_", 1)[0] for name in logs] == ["quicktext_evaluate", "quicktext_generate"]
    assert "report.html" in run.stdout
    again = run_eval(checkout, *words)
    assert again.returncode == 0
    log = max(
        (checkout / "log/reference-noise").glob("quicktext_generate_*"), key=lambda p: p.stat().st_mtime
    )
    assert "4 of 4 images are there, 0 to make" in log.read_text()
    assert "model loaded" not in log.read_text()


@needs_driver_env
def test_dry_run_counts_and_starts_nothing(checkout: Path) -> None:
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "6", "--dry_run"]
    run = run_eval(checkout, *words)
    assert run.returncode == 0, outcome_lines(run)
    assert "reference-noise/quicktext: 6 images to make, 0 to reuse, 0 to repair" in run.stdout
    assert "reference-noise/quicktext: 6 of 6 questions to ask of ppocr-v4" in run.stdout
    assert not (checkout / "output").exists()
    assert not (checkout / "log").exists()


_OF_AN_API = ["--model_names", "gpt-image-2", "--use_api", "true", "--ds_names", "quicktext", "--limit", "6"]


@needs_driver_env
def test_dry_run_needs_no_key_and_adds_up_images_requests_dollars_and_minutes(checkout: Path) -> None:
    run = run_eval(checkout, *_OF_AN_API, "--dry_run", API_KEY="", BASE_URL="")
    assert run.returncode == 0, outcome_lines(run)
    assert "note: API_KEY is not set: this plan needs no key, the run does" in run.stdout
    assert "total: 6 images to make, 6 API requests, about $1.27, about 1 minute\n" in run.stdout
    assert "  not in it: the time that this machine takes for ppocr-v4" in run.stdout
    real = run_eval(checkout, *_OF_AN_API, API_KEY="", BASE_URL="")
    assert real.returncode == 2
    assert "API_KEY is not set: set it in config.local.sh" in real.stderr
    judged = ["--model_names", "reference-noise", "--ds_names", "wise", "--dry_run"]
    assert "API_KEY is not set" not in run_eval(checkout, *judged, API_KEY="").stderr


@needs_driver_env
def test_dry_run_notes_a_request_parameter_that_looks_misspelt(checkout: Path) -> None:
    kwargs = "sise=1024x1024,quality=low,extra_body={'steps':4}"
    run = run_eval(checkout, *_OF_AN_API, "--custom_model_kwargses", kwargs, "--dry_run", API_KEY="k-0815")
    assert run.returncode == 0, outcome_lines(run)
    assert "note: model 'gpt-image-2': the request parameter 'sise' is sent as it is; if you mean 'size'" in (
        run.stdout
    )
    assert "'quality'" not in run.stdout and "'steps'" not in run.stdout


@needs_driver_env
def test_dry_run_tells_a_model_path_that_does_not_exist(checkout: Path, tmp_path: Path) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    base = ["--model_names", "slow-noise", "--ds_names", "quicktext;many", "--limit", "1"]
    add_benchmark(checkout, "many", "Many", MANY)
    for path, status in ((tmp_path / "none", 1), (tmp_path, 0), ("s3://bucket/none", 0), ("owner/none", 0)):
        run = run_eval(checkout, *base, "--dry_run", "--custom_model_kwargses", f"model_path={path}")
        assert run.returncode == status, outcome_lines(run)
        told = (
            f"blocked slow-noise/quicktext, slow-noise/many: model slow-noise: model_path: there is no {path}"
        )
        assert (told in run.stdout) == ("not in it: 2 blocked cells" in run.stdout) == bool(status)


_LOGS_READING = """
_samples = QuickText.samples


def _logged(benchmark):
    with open(__file__ + ".read", "a") as log:
        log.write("x")
    return _samples(benchmark)


_questions = QuickText.questions


def _logged_questions(benchmark, item, *rest):
    with open(__file__ + ".asked", "a") as log:
        log.write(item.id + "\\n")
    return _questions(benchmark, item, *rest)


QuickText.samples, QuickText.questions = _logged, _logged_questions
"""


@needs_driver_env
def test_dry_run_reads_a_benchmark_once_however_many_models_there_are(checkout: Path) -> None:
    reading = 'open(__file__ + ".read", "a").write("x")\n        self.dataset_name'
    add_benchmark(checkout, "many", "Many", MANY.replace("self.dataset_name", reading))
    quicktext = checkout / "benchmarks/quicktext/benchmark.py"
    quicktext.write_text(quicktext.read_text() + _LOGS_READING)
    models = [f"model-{n}" for n in range(6)]
    words = ["--use_api", "true", "--model_names", ";".join(models), "--ds_names", "quicktext;many"]
    run = run_eval(checkout, *words, "--dry_run", API_KEY="EMPTY", BASE_URL="http://127.0.0.1:9/v1")
    assert run.returncode == 0, outcome_lines(run)
    for model in models:
        assert f"  {model}/quicktext: 48 images to make, 0 to reuse, 0 to repair" in run.stdout
        assert f"  {model}/quicktext: 48 of 48 questions to ask of ppocr-v4" in run.stdout
        assert f"  {model}/many: 400 images to make, 0 to reuse, 0 to repair" in run.stdout
    assert Path(f"{quicktext}.read").read_text() == "xx", "for its images, and for its questions"
    asked = Path(f"{quicktext}.asked").read_text().split()
    assert len(asked) == len(set(asked)), "about images that are all to come the same is asked of all models"
    assert (checkout / "infer/custom_datasets/dataset_cls/t2i/many.py.read").read_text() == "x"


_LOUD = """
import os


class Loud:
    def __init__(self):
        os.write(2, b"caf\\xe9\\n")
        os.system("echo loading")
        self.dataset_name, self.dataset_task = "loud", "t2i"
        self.data = [{"prompt": "a", "seed": 1, "image_save_path": "<MODEL_NAME>/loud/0.png"}]
"""


@needs_driver_env
def test_dry_run_counts_beside_a_dataset_class_that_prints_past_python(checkout: Path) -> None:
    add_benchmark(checkout, "loud", "Loud", _LOUD)
    words = [
        "--use_api",
        "true",
        "--model_names",
        "model-a",
        "--ds_names",
        "loud;quicktext",
        "--eval",
        "false",
    ]
    run = run_eval(checkout, *words, "--dry_run", API_KEY="EMPTY", BASE_URL="http://127.0.0.1:9/v1")
    assert run.returncode == 0, outcome_lines(run)
    assert "  model-a/loud: 1 image to make" in run.stdout
    assert "  model-a/quicktext: 48 images to make" in run.stdout


@needs_driver_env
def test_dry_run_without_making_images_counts_questions_about_those_there(checkout: Path) -> None:
    base = ["--model_names", "reference-noise", "--ds_names", "quicktext"]
    assert run_eval(checkout, *base, "--limit", "4", "--eval", "false").returncode == 0
    run = run_eval(checkout, *base, "--infer", "false", "--dry_run")
    assert "reference-noise/quicktext: 4 of 4 questions to ask" in run.stdout, outcome_lines(run)


@needs_driver_env
def test_dry_run_counts_the_questions_about_images_that_are_made_again(checkout: Path) -> None:
    base = ["--model_names", "reference-blank", "--ds_names", "quicktext", "--limit", "4"]
    assert run_eval(checkout, *base).returncode in (0, 3)
    asked = "reference-blank/quicktext: {} questions to ask"
    kwargs = ["--custom_model_kwargses", "width=72"]
    assert asked.format("0 of 1") in run_eval(checkout, *base, "--dry_run").stdout, "all four are one image"
    kept = run_eval(checkout, *base, *kwargs, "--dry_run")
    assert asked.format("0 of 1") in kept.stdout, "nobody said to replace them"
    again = run_eval(checkout, *base, *kwargs, "--overwrite", "--dry_run")
    assert asked.format("4 of 4") in again.stdout, outcome_lines(again)
    next((checkout / "output/reference-blank/quicktext/images").rglob("*.jpg")).unlink()
    lost = run_eval(checkout, *base, "--dry_run")
    assert asked.format("1 of 2") in lost.stdout, outcome_lines(lost)


@needs_driver_env
def test_failing_models_and_missing_data_leave_other_cells_unharmed(checkout: Path) -> None:
    add_model(checkout, "failing", "Failing", FAILING)
    add_model(checkout, "unloadable", "Failing", FAILING, model_kwargs={"at": "load"})
    run = run_eval(
        checkout,
        *["--model_names", "failing;unloadable;reference-noise", "--ds_names", "longtext;quicktext"],
        *["--limit", "12", "--parallel", "true"],
    )
    assert run.returncode == 1, outcome_lines(run)
    assert result_of(checkout, "reference-noise/quicktext")["state"] == "complete"
    text = outcome_lines(run)
    assert "illegal memory access" in text
    assert "model does not load: OSError: no file named model.safetensors" in text
    assert "text_prompts.jsonl" in text
    assert "bash utils/prefetch.sh --ds_names longtext" in text
    assert "Traceback" not in text
    assert not (checkout / "output/failing/quicktext/result.json").exists()


@needs_driver_env
def test_changed_kwarg_is_explained_and_changes_nothing(checkout: Path) -> None:
    base = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "3"]
    assert run_eval(checkout, *base, "--custom_model_kwargses", "width=64,height=64").returncode == 0
    images = checkout / "output/reference-noise/quicktext"
    before = {p: p.read_bytes() for p in images.rglob("*") if p.is_file() and not p.name.endswith(".lock")}
    changed = ["--custom_model_kwargses", "width=96,height=64"]
    run = run_eval(checkout, *base, *changed)
    assert run.returncode == 1
    assert "width 64 → 96: 3 images are stale" in run.stdout
    assert {
        p: p.read_bytes() for p in images.rglob("*") if p.is_file() and not p.name.endswith(".lock")
    } == before
    assert run_eval(checkout, *base, *changed, "--overwrite").returncode == 0
    assert result_of(checkout, "reference-noise/quicktext")["coverage"]["generated"] == 3  # type: ignore[index]


@needs_driver_env
def test_a_limited_run_never_replaces_a_larger_result(checkout: Path) -> None:
    base = ["--model_names", "reference-blank", "--ds_names", "quicktext"]
    assert run_eval(checkout, *base, "--limit", "6").returncode == 0
    run = run_eval(checkout, *base, "--limit", "2")
    assert run.returncode == 0
    assert "the result of 6 items stands" in run.stdout
    assert result_of(checkout, "reference-blank/quicktext")["limit"] == 6


@needs_driver_env
def test_a_cell_that_fails_shows_no_older_score(checkout: Path) -> None:
    base = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "2"]
    assert run_eval(checkout, *base).returncode == 0
    run = run_eval(checkout, *base, "--custom_model_kwargses", "width=0", "--overwrite")
    assert run.returncode == 1
    assert "0.0000" not in run.stdout
    assert "0.0000" not in (checkout / "output/leaderboard.md").read_text()
    assert not (checkout / "output/reference-noise/quicktext/result.json").exists()


@needs_driver_env
def test_a_closed_pipe_changes_neither_the_run_nor_its_status(checkout: Path) -> None:
    add_model(checkout, "failing", "Failing", FAILING)
    words = "--model_names 'failing;reference-blank' --ds_names quicktext --limit 2"
    commands = (
        f"bash eval.sh {words} | head -n 1; exit ${{PIPESTATUS[0]}}",
        "bash eval.sh --help > /dev/full",
    )
    closed, full = (
        subprocess.run(
            ["bash", "-c", command],
            cwd=checkout,
            env=environ(checkout),
            capture_output=True,
            text=True,
            check=False,
        )
        for command in commands
    )
    assert closed.returncode == 1
    assert result_of(checkout, "reference-blank/quicktext")["state"] == "complete"
    assert full.returncode == 1
    assert full.stderr == "error: No space left on device: standard output\n"


@needs_driver_env
def test_images_made_elsewhere_are_scored_without_a_registered_model(checkout: Path) -> None:
    base = ["--ds_names", "quicktext", "--limit", "2"]
    assert run_eval(checkout, "--model_names", "reference-blank", *base, "--eval", "false").returncode == 0
    made = checkout / "output/reference-blank/quicktext/images"
    shutil.copytree(made, checkout / "output/made-elsewhere/quicktext/images")
    run = run_eval(checkout, "--model_names", "made-elsewhere", *base, "--infer", "false")
    assert run.returncode == 0, outcome_lines(run)
    assert "made elsewhere" in str(result_of(checkout, "made-elsewhere/quicktext")["notes"])


@needs_driver_env
def test_corrupt_image_is_counted_and_withholds_the_headline(checkout: Path) -> None:
    base = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "3"]
    assert run_eval(checkout, *base).returncode == 0
    image = next((checkout / "output/reference-noise/quicktext/images").rglob("*.jpg"))
    image.write_bytes(image.read_bytes()[:500])
    run = run_eval(checkout, *base, "--infer", "false")
    assert run.returncode == 3, outcome_lines(run)
    result = result_of(checkout, "reference-noise/quicktext")
    assert result["coverage"]["corrupt"] == 1  # type: ignore[index]
    assert result["headline"] == []
    repaired = run_eval(checkout, *base)
    assert repaired.returncode == 0


@needs_driver_env
def test_full_disk_is_one_clear_line_and_leaves_other_cells(checkout: Path) -> None:
    small = checkout / "output/reference-noise"
    small.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        run = run_eval(
            checkout,
            *["--model_names", "reference-noise;reference-blank", "--ds_names", "quicktext", "--limit", "6"],
        )
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert run.returncode == 1, outcome_lines(run)
    assert "disk full: cannot write" in run.stdout
    assert "free some space" in run.stdout
    assert "Traceback" not in outcome_lines(run)
    assert result_of(checkout, "reference-blank/quicktext")["state"] == "complete"


@needs_driver_env
def test_model_and_benchmark_written_to_the_guide_work_unchanged(checkout: Path) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    run = run_eval(checkout, "--model_names", "slow-noise", "--ds_names", "many", "--limit", "9")
    assert run.returncode == 0, outcome_lines(run)
    assert "the script ended with status 0" in run.stdout
    assert len(list((checkout / "output/slow-noise/many").glob("*.png"))) == 9


@needs_driver_env
@pytest.mark.parametrize("end", ["exit 1", "kill -9 $$"])
def test_a_script_of_the_user_s_own_is_run_once(checkout: Path, end: str) -> None:
    add_benchmark(checkout, "many", "Many", MANY)
    (checkout / "eval/many.sh").write_text(f"echo ran >> ran.txt\necho no judge answers\n{end}\n")
    run = run_eval(checkout, "--model_names", "reference-noise", "--ds_names", "many", "--limit", "1")
    assert run.returncode == 1, outcome_lines(run)
    assert "no judge answers" in run.stdout
    assert (checkout / "ran.txt").read_text() == "ran\n", "it may take hours, and judge money"


@needs_driver_env
def test_edit_benchmark_and_all_reference_models(checkout: Path) -> None:
    add_benchmark(checkout, "edits", "Edits", EDITS, task="edit")
    models = ["reference-typeset", "reference-blank", "reference-noise"]
    run = run_eval(checkout, "--model_names", ";".join(models), "--ds_names", "edits", "--eval", "false")
    assert run.returncode == 0, outcome_lines(run)
    for model in models:
        for i in range(3):
            with Image.open(checkout / f"output/{model}/edits/images/{i}.png") as image:
                assert image.size == (64 + 16 * i, 48)


@needs_driver_env
def test_diffusers_models_in_their_own_environment(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("diffusers", reason="diffusers is not installed here")
    from tests.support.tiny_checkpoints.stable_diffusion import save_stable_diffusion

    save_stable_diffusion(tmp_path / "t2i")
    (checkout / "config.local.sh").write_text(f"INFER_ENV_MAP['diffusers']='{sys.prefix}'\n")
    base = ["--model_names", "diffusers", "--eval", "false", "--limit", "2", "--ds_names", "quicktext"]
    kwargs = f"model_path={tmp_path / 't2i'},dtype=float32,device=cpu,num_inference_steps=2"
    run = run_eval(checkout, *base, "--custom_model_kwargses", kwargs)
    assert run.returncode == 0, outcome_lines(run)
    assert len(list((checkout / "output/diffusers/quicktext/images").rglob("*.jpg"))) == 2
    missing = run_eval(
        checkout,
        *base,
        "--custom_model_kwargses",
        "model_path=/no/such/folder",
        "--overwrite",
    )
    assert missing.returncode == 1
    assert "/no/such/folder" in missing.stdout
    assert "Traceback" not in outcome_lines(missing)


# ---- runs that are cut short, and runs beside each other -----------------------------------------------------


def start_slow_run(checkout: Path, benchmark: str = "many") -> subprocess.Popen[str]:
    words = ["--model_names", "slow-noise", "--ds_names", benchmark, "--eval", "false"]
    process = subprocess.Popen(
        ["bash", str(checkout / "eval.sh"), *words, "--custom_model_kwargses", "seconds=0.05"],
        env=environ(checkout, IMAGEEVALKIT_TEST_MARK=str(checkout)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    wait_for(lambda: any((checkout / "output/slow-noise").rglob("*.png")))
    return process


def processes_of(checkout: Path) -> list[str]:
    mark = f"IMAGEEVALKIT_TEST_MARK={checkout}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@needs_driver_env
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_stopped_run_leaves_no_process_and_resumes(checkout: Path, number: int, status: int) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    run = start_slow_run(checkout)
    assert processes_of(checkout)
    run.send_signal(number)
    assert run.wait(LONGEST_WAIT) == status
    if number == signal.SIGKILL:
        # at once, while guards are still ending the old run's processes: no stale lock, no second writer
        again = start_slow_run(checkout)
        again.send_signal(signal.SIGTERM)
        again.wait(LONGEST_WAIT)
    wait_for(lambda: not processes_of(checkout))
    made = len(list((checkout / "output/slow-noise/many").glob("*.png")))
    words = ["--model_names", "slow-noise", "--ds_names", "many", "--eval", "false", "--limit", str(made + 2)]
    rerun = run_eval(checkout, *words, "--custom_model_kwargses", "seconds=0.05")
    assert rerun.returncode == 0, outcome_lines(rerun)
    logs = sorted((checkout / "log/slow-noise").glob("many_generate_*"), key=lambda p: p.stat().st_mtime)
    assert f"{made} of {made + 2} images are there" in logs[-1].read_text()


@needs_driver_env
def test_two_runs_at_once(checkout: Path) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    first = start_slow_run(checkout)
    same = run_eval(checkout, "--model_names", "slow-noise", "--ds_names", "many", "--eval", "false")
    other = run_eval(
        checkout,
        "--model_names",
        "reference-blank",
        "--ds_names",
        "quicktext",
        "--eval",
        "false",
        "--limit",
        "2",
    )
    first.send_signal(signal.SIGTERM)
    first.wait(LONGEST_WAIT)
    assert same.returncode == 2
    assert "slow-noise/many is being written by another run" in same.stderr
    assert same.stderr.count("\n") == 1
    assert other.returncode == 0, outcome_lines(other)
