"""Runs in shells that allow few open files: fewer requests, one line, and no image that was paid for and not stored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.api_runs import ApiRuns, message, text_of
from tests.support.checkout import (
    MANY,
    REPO,
    add_benchmark,
    environ,
    make_checkout,
    needs_driver_env,
    run_command,
)
from tests.support.image_server import KEY, ImageServer
from tests.support.judge_server import JudgeServer

ITEMS = 160


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkout(tmp_path_factory.mktemp("files") / "checkout")
    add_benchmark(made, "many", "Many", MANY)
    return made


@pytest.fixture
def api(checkout: Path) -> Iterator[ApiRuns]:
    with ImageServer(latency=0.5) as server:
        yield ApiRuns(checkout, server)


def run(api: ApiRuns, limits: str, models: Sequence[str], *more: str) -> subprocess.CompletedProcess[str]:
    """256 requests at a time from a shell whose ``limits`` are set by ulimit."""
    words = ["--model_names", ";".join(models), "--ds_names", "many", "--use_api", "true", "--eval", "false"]
    words += ["--num_workers", "256", "--limit", str(ITEMS), *more]
    return run_command(
        ["bash", "-ec", f'{limits}\nexec bash "$@"', "shell", str(api.checkout / "eval.sh"), *words],
        env=environ(api.checkout, API_KEY=KEY, BASE_URL=api.server.base_url, NO_PROXY="127.0.0.1"),
    )


@needs_driver_env
def test_fewer_requests_are_in_flight_where_files_are_few(api: ApiRuns) -> None:
    api.server.default, model = "url", "few"
    ended = run(api, "ulimit -n 256", [model])
    assert ended.returncode == 0, text_of(ended)
    assert api.statuses(model, "many") == {"ok": ITEMS}
    assert len(api.server.requests) == ITEMS, "each image was paid for once"
    assert api.images_agree(model, "many")
    said = message(ended, "NUM_WORKERS 256 → ")
    assert said.endswith(": this shell allows 256 open files (ulimit -Hn)")
    assert api.server.max_in_flight <= int(said.split("→ ")[1].split(":")[0]) < 128
    assert "NUM_WORKERS 256 → " in ended.stderr, "beside the progress"


def child(code: str, *given: str) -> str:
    """Returns the output of ``code`` in a process with a limit of 160 open files."""
    begin = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))\n"
    ended = run_command(
        [sys.executable, "-c", begin + code, *given],
        cwd=REPO,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{REPO}:{REPO / 'infer'}", "API_KEY": KEY},
        status=0,
    )
    return ended.stdout


JUDGE = """
import sys
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit import registry
from imageevalkit.benchmark.question import Message, Question, Sampling
asked = [Question("q", (Message("user", (f"Score {n}",)),), Sampling(9), item=str(n)) for n in range(160)]
answers = list(registry.judge("openai:m", {}, options=JudgeOptions({"base_url": sys.argv[1]}, workers=256)).ask(asked))
print(sum(answer.text is not None for answer in answers), {answer.attempts for answer in answers})
"""


def test_judges_are_asked_fewer_questions_at_a_time() -> None:
    with JudgeServer(latency=0.2) as server:
        told, result = child(JUDGE, server.base_url).splitlines()
    assert told.startswith("NUM_WORKERS 256 → ")
    assert told.endswith(": this shell allows 160 open files (ulimit -Hn)")
    assert result == f"{ITEMS} {{1}}"
    assert len(server.requests) == ITEMS


TAKEN = """
import asyncio, os, sys, threading
from pathlib import Path
from custom_models.model_utils.openai_images import OpenAIImagesT2I

def take_all():
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    def free():
        for fd in taken:
            os.close(fd)
    threading.Timer(1.5, free).start()
"""
CONNECT = (
    TAKEN
    + """
async def main():
    model = OpenAIImagesT2I("m", base_url=sys.argv[1], max_attempts=1)
    await model.generate_async("a cat")
    take_all()
    made = await asyncio.gather(*(model.generate_async(f"a dog {n}") for n in range(20)))
    print({one.attempts for one in made}, {one.bill.maybe_billed for one in made})
    await model.aclose()

asyncio.run(main())
"""
)
STORE = (
    TAKEN
    + """
from imageevalkit.api.money import Bill
from imageevalkit.store.cell import Cell
from imageevalkit.generate.model import Generated, ImageModel
from tests.support.generation import FakeDataset, planned
from tests.support.image_server import png_of

cell = Cell("m", "fake")
making = planned(FakeDataset(1), cell=cell).open()
[item] = making.todo
making.begin(ImageModel())
data = png_of("a cat")
take_all()
print(making.store(item, Generated(data), 1.0))
making.end()
print(item.path.exists(), cell.generation.read_text().count('"ok"'))
"""
)


def test_a_request_waits_for_a_file_to_be_free() -> None:
    with ImageServer("url") as server:
        assert child(CONNECT, server.base_url) == "{1} {0}\n"
    assert set(Counter(request.item for request in server.requests).values()) == {1}


def test_an_image_that_is_here_waits_for_a_file_to_be_free(tmp_path: Path) -> None:
    said = child(f"import os; os.environ['IMAGEEVALKIT_OUTPUT'] = {json.dumps(str(tmp_path))}\n{STORE}")
    assert said.splitlines()[1:] == ["None", "True 1"]
