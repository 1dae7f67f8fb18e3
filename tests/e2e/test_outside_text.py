"""Words from outside that no encoder takes, or that would steer a terminal: everything goes on, and all is kept."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from custom_models.model_utils.openai_images import OpenAIImagesEdit
from imageevalkit.common.errors import complain
from imageevalkit.common.text import plain, printable, to_bytes
from tests.support.api_runs import ApiRuns, prompts, text_of
from tests.support.checkout import (
    add_benchmark,
    add_model,
    environ,
    find_no_text,
    make_checkout,
    needs_driver_env,
    run_eval,
)
from tests.support.image_server import HALF, STEERING, ImageServer, Received

NO_UTF8 = os.fsdecode(b"caf\xe9")
"""A name on disk from a time before UTF-8."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiRuns]:
    with ImageServer() as server:
        yield ApiRuns(find_no_text(make_checkout(tmp_path / "checkout")), server)


def test_text_is_written_so_that_json_gives_it_back() -> None:
    text = f"{HALF} 中文 🎈 {NO_UTF8} \\ud83d"
    assert json.loads(to_bytes(json.dumps(text, ensure_ascii=False))) == text
    assert to_bytes("中文 🎈") == "中文 🎈".encode(), "what is well-formed stays as it is"


def test_what_is_printed_steers_no_terminal() -> None:
    assert plain(f"no {STEERING} \x1b[1mbold\x1b[0m \x1bPq\x1b\\ 中文 🎈\r\n end\x85") == (
        "no reversed bold 中文 🎈 end"
    )
    assert printable(f"one\n\ttwo {HALF}\x1b]0;no end") == "one\n\ttwo a smile \\ud83d0;no end", (
        "words after an escape that does not end are not swallowed"
    )


@pytest.mark.parametrize("begin", ["\x1b]", "\x1b[", "\x1b ", "\x90", "\x9b0", "\x9d", "\x9d\x1b]"])
def test_thousands_of_escapes_that_do_not_end_take_no_time(begin: str) -> None:
    started = time.process_time()
    printable(begin * 60_000)
    assert time.process_time() - started < 2, (
        "a pattern that begins anew at each of them takes a quarter of a minute"
    )


@needs_driver_env
def test_half_an_emoji_in_a_reply_costs_no_model_a_record(api: ApiRuns) -> None:
    halves = dict(zip(prompts(), ("half_refuse", "half_500", "half_ok"), strict=False))

    def answer(request: Received, attempt: int) -> str:
        return halves.get(request.prompt, "ok") if request.fields["model"] == "model-a" else "ok"

    api.server.choose = answer
    quick = "max_attempts=2,backoff=0.01"
    run = api.run("--eval", "true", models=["model-a", "model-b"], kwargs=f"{quick};{quick}", limit=6)
    assert run.returncode == 3, text_of(run)
    assert "left no outcome" not in text_of(run)
    assert api.statuses("model-a") == {"ok": 4, "refused": 1, "failed": 1}
    assert api.statuses("model-b") == {"ok": 6}, "the other model is unharmed"
    refused, failed, made = (api.of_prompt(number) for number in range(3))
    assert refused["error"]["text"].endswith(HALF)
    assert HALF in failed["error"]["text"]
    assert (made["extra"]["model"], made["extra"]["revised_prompt"]) == (
        f"served {HALF}",
        f"{made['prompt']} {HALF}",
    )
    logs = [path.read_text() for path in (api.checkout / "log").rglob("*.log")]
    assert any("refused: Refused: " in log and "a smile \\ud83d" in log for log in logs)
    assert [line for line in run.stdout.splitlines() if line.startswith("report: ")], "the report is written"
    page = (api.checkout / "output/report.html").read_text()
    assert "Pine Ridge" in made["prompt"] and "Pine Ridge" in page and "a smile \\ud83d" in page
    assert {
        row.split(",")[0] for row in (api.checkout / "output/leaderboard.csv").read_text().splitlines()
    } == {
        "model",
        "model-a",
        "model-b",
    }

    asked = len(api.server.requests)
    again = api.run("--eval", "true", models=["model-a", "model-b"], kwargs=f"{quick};{quick}", limit=6)
    assert again.returncode == 3
    assert {request.fault for request in api.server.requests[asked:]} == {"half_500"}, (
        "what is on record is not paid for again"
    )


@needs_driver_env
def test_half_an_emoji_in_a_prompt_or_in_the_words_of_a_local_model(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    add_benchmark(checkout, "halves", "Halves", HALVES)
    add_model(checkout, "speaking", "Speaking", SPEAKING)
    run = run_eval(checkout, "--model_names", "speaking", "--ds_names", "halves", "--eval", "false")
    assert run.returncode == 3, text_of(run)
    lines = (checkout / "output/speaking/halves/generation.jsonl").read_text().splitlines()
    failed, made = sorted((json.loads(line) for line in lines), key=lambda record: str(record["status"]))
    assert (failed["status"], failed["prompt"]) == ("failed", f"bad {HALF}")
    assert (made["status"], made["prompt"]) == ("ok", f"fine {HALF}")
    assert failed["error"]["text"] == f"cannot draw bad {HALF}"
    assert "bad a smile \\ud83d" in run.stdout


def test_an_edit_sends_an_instruction_with_half_an_emoji(server: ImageServer) -> None:
    OpenAIImagesEdit("edit-1").generate([Image.new("RGB", (64, 48), (40, 90, 20)), f"make it {HALF}"])
    [request] = server.requests
    assert request.fields["prompt"] == "make it a smile \\ud83d"


@needs_driver_env
def test_what_a_server_says_never_steers_the_terminal(api: ApiRuns) -> None:
    api.server.default = "steering_refuse"
    words = ["--model_names", "model-a", "--ds_names", "quicktext", "--use_api", "true", "--limit", "2"]
    command = ["bash", str(api.checkout / "eval.sh"), *words]
    given = environ(api.checkout, API_KEY=api.key, BASE_URL=api.server.base_url, TERM="xterm")
    shown = in_terminal(command, given)
    assert b"rejected by the safety system" in shown
    for part in ("owned", "\x1b]", "\x1b[2J", "\x9b", "\u202e"):
        assert part.encode() not in shown
    assert b"\x1b[31m" in shown, "our own colours stay"
    assert api.of_prompt(0)["error"]["text"].endswith(STEERING), "what was said is on record as it was said"


def test_names_typed_with_an_escape_are_shown_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"unknown model 'reference-typeset{STEERING}'")
    shown = capsys.readouterr().err
    assert shown.startswith("error: unknown model") and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


def test_an_image_whose_name_is_no_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / f"{NO_UTF8}\x1b[2J.png").write_bytes(b"no image")
    program = Path(__file__).resolve().parents[2] / "utils/check_empty_image.py"
    for more in ([], ["--json"]):
        command = [sys.executable, str(program), str(tmp_path), *more]
        found = subprocess.run([*command], capture_output=True, env=environ(program.parents[1]), check=False)
        assert found.returncode == 1
        assert b"caf\\udce9" in found.stdout and b"\x1b" not in found.stdout and not found.stderr


def in_terminal(command: list[str], env: dict[str, str]) -> bytes:
    """All that ``command`` prints on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 1 << 16):
            shown += data
    except OSError:  # how Linux says that nobody has the other end any more
        pass
    os.close(ours)
    process.wait()
    return shown


HALVES = """
class Halves:
    def __init__(self):
        self.dataset_name = "halves"
        self.dataset_task = "t2i"
        self.data = [
            {"prompt": f"{word} a smile \\ud83d", "seed": 0, "image_save_path": f"<MODEL_NAME>/halves/{word}.png"}
            for word in ("fine", "bad")
        ]
"""

SPEAKING = '''
from PIL import Image


class Speaking:
    """Prints what it is asked for, and fails with it."""

    def __init__(self, model_path):
        self.model_name = "speaking"

    def generate(self, prompt, seed=42):
        print(f"asked for {prompt}")
        if prompt.startswith("bad"):
            raise ValueError(f"cannot draw {prompt}")
        return Image.linear_gradient("L")
'''
