"""Words from outside that no encoder takes, or that would steer a terminal: everything goes on, and all is kept."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time

from imageevalkit.common.text import plain, printable, to_bytes
from tests.support.api_runs import ApiRuns, prompts, text_of
from tests.support.checkout import (
    environ,
    needs_driver_env,
)
from tests.support.image_server import HALF, STEERING, Received

NO_UTF8 = os.fsdecode(b"caf\xe9")
"""A name on disk from a time before UTF-8."""


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


def test_thousands_of_escapes_that_do_not_end_take_no_time() -> None:
    started = time.process_time()
    printable("\x9d\x1b]" * 60_000)
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
    run = api.run(
        "--eval", "true", models=["model-a", "model-b"], kwargs=f"{quick};{quick}", limit=6, status=3
    )
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
