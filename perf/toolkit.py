"""The measured toolkit: a copy of the tree with the benchmarks of ``perf/benchmark.py``, run as users run it."""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

from PIL import Image, ImageChops

from perf.harness import REPO, Usage, measure
from perf.latency_server import OK, AnsweredRequest, ServerProcess, comment
from tests.support.checkout import environ, make_checkout

MODEL, BENCHMARK, JUDGED = "some-served-model", "perf", "perf-judged"
WORKERS = 64
"""Requests in flight where a program has one number only."""
_RULES = "Give 1 only where the image shows what the prompt says, 0 where there is any doubt. " * 40
_AFTER_HEADER = 33  # bytes: the signature and IHDR
# Standard deviation in grey levels: this noise on a smooth ground gives a PNG of 1.7 MB at 1024 px.
_NOISE = 3.3


def make_prompts(count: int) -> list[str]:
    """Returns so many prompts. The latency server finds the number of the item in each."""
    return [f"item {n}: green croissants beside a wooden chair, seen from above" for n in range(count)]


def make_photos(side: int) -> list[bytes]:
    """Returns four PNGs that cost as much as photos to send, decode and encode; equal in every run."""
    quantile, pngs = NormalDist(128, _NOISE).inv_cdf, []
    bell = [round(quantile((value + 0.5) / 256)) for value in range(256)]
    for seed in range(4):
        rng, buffer = random.Random(seed), io.BytesIO()
        coarse = bytes(rng.randrange(60, 196) for _ in range(8 * 8 * 3))
        ground = Image.frombytes("RGB", (8, 8), coarse).resize((side, side), Image.Resampling.BICUBIC)
        noise = Image.frombytes("RGB", (side, side), rng.randbytes(side * side * 3)).point(bell * 3)
        ImageChops.add(ground, noise, offset=-128).save(buffer, "PNG")
        png = buffer.getvalue()
        pngs.append(png[:_AFTER_HEADER] + comment() + png[_AFTER_HEADER:])
    return pngs


def image_replies(folder: Path, side: int) -> Path:
    """Writes the bodies of ``/images/generations`` replies and returns their folder."""
    usage = {"input_tokens": 12, "output_tokens": 272, "total_tokens": 284}
    images = [{"b64_json": base64.b64encode(png).decode()} for png in make_photos(side)]
    return _write_replies(folder, [{"created": 0, "data": [image], "usage": usage} for image in images])


def judge_replies(folder: Path) -> Path:
    """Writes the bodies of ``/chat/completions`` replies, one for each verdict, and returns their folder."""
    messages = [{"role": "assistant", "content": f"Score: {score}"} for score in (0, 1)]
    choices = [{"index": 0, "message": message, "finish_reason": "stop"} for message in messages]
    usage = {"prompt_tokens": 2400, "completion_tokens": 4, "total_tokens": 2404}
    about = {"id": "chatcmpl-0", "object": "chat.completion", "usage": usage}
    return _write_replies(folder, [{**about, "choices": [choice]} for choice in choices])


def _write_replies(folder: Path, replies: Sequence[object]) -> Path:
    folder.mkdir(parents=True)
    for n, reply in enumerate(replies):
        (folder / f"{n}.json").write_text(json.dumps(reply))
    return folder


class Toolkit:
    """A copy of the tree in ``folder`` with benchmarks of these ``prompts``; results and logs are beside the copy."""

    def __init__(self, folder: Path, prompts: Sequence[str]) -> None:
        self.prompts = prompts
        self.checkout = make_checkout(folder / "kit")
        self.output, self.log = folder / "output", folder / "log"
        place = self.checkout / "benchmarks/perf"
        place.mkdir()
        shutil.copy(Path(__file__).with_name("benchmark.py"), place)
        self.items = place / "items.json"
        entries = [{"file": f"images/{n:05}.png", "prompt": prompt} for n, prompt in enumerate(prompts)]
        self.items.write_text(json.dumps({"rules": _RULES, "items": entries}))
        for name in (BENCHMARK, JUDGED):
            (self.checkout / f"eval/{name}.sh").symlink_to("../utils/evaluate.sh")

    def environ(self, server: ServerProcess | None = None) -> dict[str, str]:
        """Returns the environment of a user of the copy whose endpoint is ``server``."""
        env = environ(self.checkout, IMAGEEVALKIT_OUTPUT=str(self.output), IMAGEEVALKIT_LOG=str(self.log))
        nowhere = {"API_KEY": "EMPTY", "BASE_URL": "http://127.0.0.1:9/v1"}
        return {**env, **(server.environ if server else nowhere)}

    def forget(self) -> None:
        """Removes all results."""
        shutil.rmtree(self.output, ignore_errors=True)

    def run(self, *words: str, servers: Sequence[ServerProcess] = ()) -> Usage:
        """Runs ``bash eval.sh`` with ``words``; BASE_URL names the first server. Earlier logs are removed."""
        shutil.rmtree(self.log, ignore_errors=True)
        return measure(
            ["bash", str(self.checkout / "eval.sh"), *words],
            cwd=self.checkout,
            environ=self.environ(*servers[:1]),
            log=self.log / "eval.log",
            servers=[server.pid for server in servers],
        )

    def run_api(self, benchmark: str, *words: str, servers: Sequence[ServerProcess]) -> Usage:
        """Runs ``bash eval.sh`` for the served model; a second server is the judge's."""
        judge = [f"base_url={server.environ['BASE_URL']}" for server in servers[1:]]
        about = ["--model_names", MODEL, "--ds_names", benchmark, "--use_api", "true"]
        return self.run(*about, *(["--judge_kwargs", *judge] if judge else []), *words, servers=servers)

    def of_job(self, stage: str, usage: Usage) -> Usage:
        """Returns ``usage`` with the seconds that the job of ``stage`` took in the latest run, its start included."""
        if usage.status:
            return usage
        [summary] = self.log.rglob("summary.json")
        jobs = json.loads(summary.read_bytes())["jobs"]
        return usage._replace(wall=sum(job["seconds"] for job in jobs if job["stage"] == stage))

    def run_plainly(self, way: str, workers: int, out: Path, server: ServerProcess) -> Usage:
        """Runs one of the plain clients (``perf/plain.py``) with the same items."""
        return measure(
            [sys.executable, "-P", "-m", "perf.plain", way, str(self.items), str(out), str(workers)],
            cwd=REPO,
            environ={**self.environ(server), "PYTHONPATH": str(REPO)},
            log=self.log / "plain.log",
            servers=[server.pid],
        )

    def failure(self, usage: Usage) -> list[str]:
        """Returns why a command failed, with the last lines of each log; empty if it did not fail."""
        if not usage.status:
            return []
        texts = [path.read_text(errors="replace")[-1500:] for path in self.log.rglob("*.log")]
        return ["\n".join([f"exit status {usage.status} after {usage.wall:.0f} s:", *texts])]

    def records(self, name: str, benchmark: str, model: str = "*") -> list[dict[str, object]]:
        """Returns the records in file ``name`` of a benchmark, by default of all models."""
        paths = self.output.glob(f"{model}/{benchmark}/{name}")
        return [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]

    def problems(
        self, usage: Usage, name: str, benchmark: str, log: Sequence[AnsweredRequest] | None = None
    ) -> list[str]:
        """Returns why a run failed, which items lack a good record in file ``name``, and what was paid twice."""
        good = {one["item"] for one in self.records(name, benchmark) if one["status"] in ("ok", "judged")}
        paid = len(good) if log is None else sum(line.answer == OK for line in log)
        counts, all_of = {f"items in {name}": len(good), "good answers": paid}, len(self.prompts)
        return self.failure(usage) + [f"{n} {of} of {all_of}" for of, n in counts.items() if n != all_of]
