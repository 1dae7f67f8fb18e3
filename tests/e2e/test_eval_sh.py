"""bash eval.sh as a user types it: errors before anything starts, whole runs, and what happens when things break."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from imageevalkit.store.cell import log_root, output_root
from tests.support.api_runs import text_of
from tests.support.checkout import (
    FAILING,
    MANY,
    SLOW_NOISE,
    add_benchmark,
    add_model,
    environ,
    make_checkout,
    needs_driver_env,
    run_command,
    run_eval,
    start_eval,
)
from tests.support.commands import eval_here
from tests.support.jobs import marked
from tests.support.waiting import LONGEST_WAIT, wait_for


def result_of(checkout: Path, cell: str) -> dict[str, object]:
    return json.loads((checkout / "output" / cell / "result.json").read_text())


# ---- before anything starts ---------------------------------------------------------------------------------


def test_mistakes_are_one_line_and_status_2_before_anything_starts(checkout: Path) -> None:
    """tests/unit/test_mistakes.py has those of a command line; these are of the files that bash reads."""
    words = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--dry_run"]
    for config, given, says in (
        (b"exit 0\n", words, "config.local.sh ends the run: it calls exit"),
        (b"DS_NAMES=('quicktext'\n", words, "config.local.sh has a syntax error"),
        (b"MODEL_NAMES=('reference-noise')\nDS_NAMES=('quicktxt')\n", [], "did you mean 'quicktext'?"),
    ):
        (checkout / "config.local.sh").write_bytes(config)
        run = run_eval(checkout, *given)
        assert (run.returncode, run.stdout) == (2, ""), config
        assert says in run.stderr.splitlines()[-1]
    assert run.stderr.count("\n") == 1
    assert not (checkout / "output").exists()
    assert not (checkout / "log").exists()


def test_help_and_slips_of_the_pen_need_no_environment_and_work_from_anywhere(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / ".venv").unlink(missing_ok=True)
    (checkout / "config.local.sh").write_text("exit 7\n")  # help does not read it
    for program, words, status, says in (
        ("eval.sh", ["--limit", "1", "-h"], 0, "--custom_model_kwargses"),
        ("utils/prefetch.sh", ["--model_names"], 2, "--model_names: expected one argument"),
    ):
        run = run_command(
            ["bash", os.path.relpath(checkout / program, tmp_path), *words],
            cwd=tmp_path,
            env=environ(checkout),
        )
        assert run.returncode == status
        assert says in (run.stderr if status else run.stdout)
        assert run.stderr.count("\n") == bool(status)
    assert not (checkout / ".venv").exists()


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
    run = run_eval(checkout, *words, "--parallel", "true", status=0)
    typeset, noise = (result_of(checkout, f"{m}/quicktext") for m in ("reference-typeset", "reference-noise"))
    assert typeset["metrics"]["en"]["value"] > 0.9  # type: ignore[index]
    assert noise["metrics"]["en"]["value"] < 0.05  # type: ignore[index]
    assert typeset["limit"] == 4
    for name in ("leaderboard.csv", "leaderboard.md", "report.html"):
        assert (checkout / "output" / name).stat().st_size > 0
    logs = sorted(p.name for p in (checkout / "log/reference-noise").iterdir())
    assert [name.rsplit("_", 1)[0] for name in logs] == ["quicktext_evaluate", "quicktext_generate"]
    assert "report.html" in run.stdout
    run_eval(checkout, *words, status=0)
    log = max(
        (checkout / "log/reference-noise").glob("quicktext_generate_*"), key=lambda p: p.stat().st_mtime
    )
    assert "4 of 4 images exist, 0 to generate" in log.read_text()
    assert "model loaded" not in log.read_text()


@needs_driver_env
def test_a_corrupt_image_withholds_the_headline_and_a_cell_that_fails_shows_no_older_score(
    checkout: Path,
) -> None:
    base = ["--model_names", "reference-noise", "--ds_names", "quicktext", "--limit", "3"]
    assert run_eval(checkout, *base).returncode == 0
    image = next((checkout / "output/reference-noise/quicktext/images").rglob("*.jpg"))
    image.write_bytes(image.read_bytes()[:500])
    run_eval(checkout, *base, "--infer", "false", status=3)
    result = result_of(checkout, "reference-noise/quicktext")
    assert result["coverage"]["corrupt"] == 1  # type: ignore[index]
    assert result["headline"] == []
    image.unlink()
    failed = run_eval(checkout, *base, "--custom_model_kwargses", "width=0", "--overwrite", status=1)
    assert "0.0000" not in failed.stdout
    assert "0.0000" not in (checkout / "output/leaderboard.md").read_text()
    assert not (checkout / "output/reference-noise/quicktext/result.json").exists()


@needs_driver_env
def test_dry_run_needs_no_key_and_adds_up_images_requests_dollars_and_minutes() -> None:
    words = ["--model_names", "gpt-image-2", "--use_api", "true", "--ds_names", "quicktext", "--limit", "6"]
    done = eval_here(*words, "--custom_model_kwargses", "sise=1024x1024,extra_body={'steps':4}", "--dry_run")
    assert (done.status, done.error) == (0, "")
    assert "note: API_KEY is not set: this plan needs no key, the run does" in done.said
    assert "total: 6 images to generate, 6 API requests, about $1.27, about 1 minute\n" in done.said
    assert "  not in it: the time that this machine takes for ppocr-v4" in done.said
    says = "note: model 'gpt-image-2': the request parameter 'sise' is sent as it is; if you mean 'size'"
    assert says in done.said and "'steps'" not in done.said
    assert not output_root().exists() and not log_root().exists()


@needs_driver_env
def test_failing_models_and_missing_data_leave_other_cells_unharmed(checkout: Path) -> None:
    add_model(checkout, "failing", "Failing", FAILING)
    add_model(checkout, "unloadable", "Failing", FAILING, model_kwargs={"at": "load"})
    run = run_eval(
        checkout,
        *["--model_names", "failing;unloadable;reference-noise", "--ds_names", "longtext;quicktext"],
        *["--limit", "12", "--parallel", "true"],
        status=1,
    )
    assert result_of(checkout, "reference-noise/quicktext")["state"] == "complete"
    text = text_of(run)
    assert "illegal memory access" in text
    assert "model does not load: OSError: no file named model.safetensors" in text
    assert "text_prompts.jsonl" in text
    assert "bash eval.sh prefetch --ds_names longtext" in text
    assert "Traceback" not in text
    assert not (checkout / "output/failing/quicktext/result.json").exists()


@needs_driver_env
def test_a_closed_pipe_changes_neither_the_run_nor_its_status(checkout: Path) -> None:
    add_model(checkout, "failing", "Failing", FAILING)
    words = "--model_names 'failing;reference-blank' --ds_names quicktext --limit 2"
    commands = (
        f"bash eval.sh {words} | head -n 1; exit ${{PIPESTATUS[0]}}",
        "bash eval.sh --help > /dev/full",
    )
    closed, full = (
        run_command(["bash", "-c", command], cwd=checkout, env=environ(checkout)) for command in commands
    )
    assert closed.returncode == 1
    assert result_of(checkout, "reference-blank/quicktext")["state"] == "complete"
    assert full.returncode == 1
    assert full.stderr == "error: No space left on device: standard output\n"


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
    assert run.returncode == 1, text_of(run)
    assert "disk full: cannot write" in run.stdout
    assert "free some space" in run.stdout
    assert "Traceback" not in text_of(run)
    assert result_of(checkout, "reference-blank/quicktext")["state"] == "complete"


# ---- runs that are cut short, and runs beside each other -----------------------------------------------------


def start_slow_run(checkout: Path) -> subprocess.Popen[str]:
    words = ["--model_names", "slow-noise", "--ds_names", "many", "--eval", "false"]
    words += ["--custom_model_kwargses", "seconds=0.05"]
    process = start_eval(checkout, *words, TEST_MARKER=str(checkout))
    wait_for(lambda: any((checkout / "output/slow-noise").rglob("*.png")))
    return process


@needs_driver_env
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_stopped_run_leaves_no_process_and_resumes(checkout: Path, number: int, status: int) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    run = start_slow_run(checkout)
    assert marked(str(checkout))
    run.send_signal(number)
    assert run.wait(LONGEST_WAIT) == status
    if number == signal.SIGKILL:
        # at once, while guards are still ending the old run's processes: no stale lock, no second writer
        again = start_slow_run(checkout)
        again.send_signal(signal.SIGTERM)
        again.wait(LONGEST_WAIT)
    wait_for(lambda: not marked(str(checkout)))
    made = len(list((checkout / "output/slow-noise/many").glob("*.png")))
    words = ["--model_names", "slow-noise", "--ds_names", "many", "--eval", "false", "--limit", str(made + 2)]
    run_eval(checkout, *words, "--custom_model_kwargses", "seconds=0.05", status=0)
    logs = sorted((checkout / "log/slow-noise").glob("many_generate_*"), key=lambda p: p.stat().st_mtime)
    assert f"{made} of {made + 2} images exist" in logs[-1].read_text()


@needs_driver_env
def test_two_runs_at_once(checkout: Path) -> None:
    add_model(checkout, "slow-noise", "SlowNoise", SLOW_NOISE)
    add_benchmark(checkout, "many", "Many", MANY)
    first = start_slow_run(checkout)
    same = run_eval(checkout, "--model_names", "slow-noise", "--ds_names", "many", "--eval", "false")
    words = ["--model_names", "reference-blank", "--ds_names", "quicktext", "--eval", "false", "--limit", "2"]
    other = run_eval(checkout, *words)
    first.send_signal(signal.SIGTERM)
    assert first.wait(LONGEST_WAIT) == 143
    wait_for(lambda: not marked(str(checkout)))
    assert same.returncode == 2
    assert "slow-noise/many is being written by another run" in same.stderr
    assert same.stderr.count("\n") == 1
    assert other.returncode == 0, text_of(other)
