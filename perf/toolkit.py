"""The toolkit under measurement: a copy of the tree with the benchmarks of ``perf/benchmark.py``, run as users run it.

As a program it plans a run as ``bash eval.sh`` does and prints its job of a stage, which starts nothing:
``python -P -m perf.toolkit STAGE OPTIONS``; the options are eval.sh's, the tree is the one that PYTHONPATH names first.
"""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

from PIL import Image, ImageChops

from perf.harness import MIRROR, REPO, Bar, Row, Usage, measure
from perf.latency_server import OK, AnsweredRequest, ServerProcess, comment, reply_number
from tests.support.checkout import environ, make_checkout

MODEL, BENCHMARK, JUDGED = "some-served-model", "perf", "perf-judged"
_GENEVAL2 = "facebookresearch/GenEval2/*/geneval2_data.jsonl"
_WISE = "PKU-YuanGroup/WISE/*/data_verified/merge.json"
_TEMPLATE = "vllm_eval.py::build_evaluation_messages#"
_SYSTEM = "You judge images against the words they were made from."
_RULES = "Give 1 only where the image shows what the explanation says, 0 where there is any doubt. " * 40
_USER = (
    _RULES + '\n\nPROMPT: "{Prompt}"\nEXPLANATION: "{Explanation}"\n\nReturn only `Score: 0` or `Score: 1`.'
)
SIDES = {"256 px": 256, "1024 px": 1024}
"""Width and height in pixels by name."""
_DISTINCT = 4
_AFTER_HEADER = 33  # bytes: the signature and IHDR
# Standard deviation, in grey levels, at which noise on a smooth ground makes 1024 px a PNG of 1.7 MB.
_NOISE = 3.3


class Items(NamedTuple):
    """``source`` says where they come from; ``entries`` are what ``items.json`` of the benchmark holds."""

    source: str
    entries: list[dict[str, str]]

    @property
    def prompts(self) -> list[str]:
        """No two are equal."""
        return [entry["prompt"] for entry in self.entries]

    @classmethod
    def of(cls, source: str, explained: Mapping[str, str], system: str = _SYSTEM, user: str = _USER) -> Items:
        """Those of prompts with their explanations, as a judge's templates put them."""
        entries = [
            {
                "file": f"images/{n:05d}.png",
                "prompt": prompt,
                "system": system,
                "user": user.replace("{Prompt}", prompt).replace("{Explanation}", explanation),
            }
            for n, (prompt, explanation) in enumerate(explained.items())
        ]
        return cls(source, entries)


def geneval2_items(count: int) -> Items:
    """GenEval 2's first ``count`` prompts if a mirror has them, else as many synthetic ones."""
    source, prompts = "synthetic", [f"{n} green croissants beside a wooden chair" for n in range(count)]
    for path in sorted(MIRROR.glob(_GENEVAL2)):
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) >= count:
            source, prompts = "GenEval 2", [json.loads(line)["prompt"] for line in lines[:count]]
    return Items.of(source, dict.fromkeys(prompts, "It is what the prompt says, and round. " * 8))


def wise_items(count: int) -> Items:
    """WISE's first ``count`` prompts with its judge's words if a mirror has them, else as many synthetic ones."""
    for path in sorted(MIRROR.glob(_WISE)):
        texts = json.loads((path.parents[1] / "judge_prompts.json").read_text(encoding="utf-8"))
        records = json.loads(path.read_text(encoding="utf-8"))
        records.sort(key=lambda record: record["prompt_id"])
        explained = {record["Prompt"]: record["Explanation"] for record in records[:count]}
        system, user = (texts[_TEMPLATE + role]["text"] for role in ("system", "user"))
        return Items.of("WISE verified", explained, system, user)
    return geneval2_items(count)


def make_pngs(size: str) -> list[bytes]:
    """A few PNGs that cost what photos cost to send, decode and encode; the same in every run."""
    return [_photo_like(SIDES[size], seed) for seed in range(_DISTINCT)]


def _photo_like(side: int, seed: int) -> bytes:
    rng = random.Random(seed)
    coarse = bytes(rng.randrange(60, 196) for _ in range(8 * 8 * 3))
    ground = Image.frombytes("RGB", (8, 8), coarse).resize((side, side), Image.Resampling.BICUBIC)
    quantile = NormalDist(128, _NOISE).inv_cdf
    bell = [round(quantile((value + 0.5) / 256)) for value in range(256)]
    noise = Image.frombytes("RGB", (side, side), rng.randbytes(side * side * 3)).point(bell * 3)
    buffer = io.BytesIO()
    ImageChops.add(ground, noise, offset=-128).save(buffer, "PNG")
    png = buffer.getvalue()
    return png[:_AFTER_HEADER] + comment() + png[_AFTER_HEADER:]


def as_sent(pngs: Sequence[bytes], prompt: str) -> bytes:
    """The image that the server makes of ``prompt``."""
    return pngs[reply_number(prompt, len(pngs))].replace(comment(), comment(prompt), 1)


def write_image_replies(folder: Path, pngs: Sequence[bytes]) -> None:
    """Write the body of an ``/images/generations`` reply for each image, in order, as ``0.json``, …"""
    folder.mkdir(parents=True)
    usage = {"input_tokens": 12, "output_tokens": 272, "total_tokens": 284}
    for n, png in enumerate(pngs):
        reply = {"created": 0, "data": [{"b64_json": base64.b64encode(png).decode()}], "usage": usage}
        (folder / f"{n}.json").write_text(json.dumps(reply))


def write_judge_replies(folder: Path) -> None:
    """Write the body of a ``/chat/completions`` reply for each binary verdict."""
    folder.mkdir(parents=True)
    usage = {"prompt_tokens": 2400, "completion_tokens": 4, "total_tokens": 2404}
    for score in (0, 1):
        message = {"role": "assistant", "content": f"Score: {score}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        reply = {"id": "chatcmpl-0", "object": "chat.completion", "choices": [choice], "usage": usage}
        (folder / f"{score}.json").write_text(json.dumps(reply))


def of_bound(
    label: str,
    usage: Usage,
    log: Sequence[AnsweredRequest],
    bound: float,
    bar: Bar | None = None,
    problems: Sequence[str] = (),
) -> Row:
    """The wall time of a client of the server with ``log`` against the ``bound`` of any, in seconds."""
    figures = {"bound s": f"{bound:.2f}", "asked": asked_after(usage, log), **usage.figures}
    return Row(label, usage.wall / max(bound, 1e-9), bar, figures, problems, usage.others)


def asked_after(usage: Usage, log: Sequence[AnsweredRequest]) -> str:
    """Seconds after its start at which the client's first request came."""
    return f"{min((line.arrived for line in log), default=usage.started) - usage.started:.2f}"


class Toolkit:
    """A copy of the tree in ``folder`` whose benchmarks ask for ``items``; results and logs are apart from it."""

    def __init__(self, folder: Path, items: Sequence[Mapping[str, str]]) -> None:
        self.checkout = make_checkout(folder / "kit")
        self.output, self.log = folder / "output", folder / "log"
        place = self.checkout / "benchmarks/perf"
        place.mkdir()
        shutil.copy(Path(__file__).with_name("benchmark.py"), place)
        (place / "items.json").write_text(json.dumps(items))
        for name in (BENCHMARK, JUDGED):
            (self.checkout / f"eval/{name}.sh").symlink_to("../utils/evaluate.sh")

    def environ(self, server: ServerProcess | None = None) -> dict[str, str]:
        """The environment of a user of the copy, whose endpoint is ``server``."""
        env = environ(self.checkout, IMAGEEVALKIT_OUTPUT=str(self.output), IMAGEEVALKIT_LOG=str(self.log))
        nowhere = {"API_KEY": "EMPTY", "BASE_URL": "http://127.0.0.1:9/v1"}
        return {**env, **(server.environ if server else nowhere)}

    def forget(self) -> None:
        """Remove all results and logs."""
        for folder in (self.output, self.log):
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, *words: str, servers: Sequence[ServerProcess] = ()) -> Usage:
        """``bash eval.sh`` with ``words``; the first server is that of BASE_URL."""
        return measure(
            ["bash", str(self.checkout / "eval.sh"), *words],
            cwd=self.checkout,
            environ=self.environ(*servers[:1]),
            log=self.log / "eval.log",
            servers=[server.pid for server in servers],
        )

    def run_job(self, stage: str, *words: str, server: ServerProcess | None = None) -> Usage:
        """The job of ``stage`` alone, as the launcher starts it for eval.sh with ``words``."""
        env = self.environ(server)
        planned = subprocess.run(
            [sys.executable, "-P", "-m", "perf.toolkit", stage, *words],
            cwd=self.checkout,
            env={**env, "PYTHONPATH": f"{env['PYTHONPATH']}:{REPO}"},
            stdout=subprocess.PIPE,
            check=True,
        )
        job = json.loads(planned.stdout)
        return measure(
            job["command"],
            cwd=self.checkout,
            environ=job["environ"],
            log=self.checkout / job["log"],
            servers=[server.pid] if server else [],
        )

    def run_plainly(self, way: str, *words: str, output: Path, server: ServerProcess) -> Usage:
        """One of the plain ways (``perf/plain.py``) with the same items, into ``output``."""
        command = [sys.executable, "-P", "-m", "perf.plain", way, "--out", str(output), *words]
        return measure(
            [*command, "--items", str(self.checkout / "benchmarks/perf/items.json")],
            cwd=REPO,
            environ={**self.environ(server), "PYTHONPATH": str(REPO)},
            log=self.log / "plain.log",
            servers=[server.pid],
        )

    def prefetch(self, *words: str) -> None:
        """Give the copy the data of benchmarks, from the mirror."""
        command = ["bash", "utils/prefetch.sh", "--infer", "false", *words, "--mirror", str(MIRROR)]
        subprocess.run(command, cwd=self.checkout, env=self.environ(), stdout=subprocess.DEVNULL, check=True)

    def failure(self, usage: Usage) -> list[str]:
        """Why a command failed, with the last lines of every log; empty where it did not."""
        if not usage.status:
            return []
        texts = [path.read_text(errors="replace")[-1500:] for path in self.log.rglob("*.log")]
        return ["\n".join([f"{usage.how_it_ended}:", *texts])]

    def seconds_row(self, label: str, usage: Usage, bar: Bar, *problems: str) -> Row:
        """A command whose wall time is held against ``bar``."""
        why = [*self.failure(usage), *problems]
        return Row(label, usage.wall, bar, usage.figures, why, usage.others, " s")

    def records(self, name: str, benchmark: str, model: str = MODEL) -> list[dict[str, object]]:
        """The records in the file ``name`` of a cell; none where there is no such file."""
        path = self.output / model / benchmark / name
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def image_problems(
        self, items: Items, pngs: Sequence[bytes], log: Sequence[AnsweredRequest], benchmark: str = BENCHMARK
    ) -> list[str]:
        """What is wrong with the images, in words; empty when every item has its own, paid for once."""
        records = {record["prompt"]: record for record in self.records("generation.jsonl", benchmark)}
        paid = Counter(line.item for line in log if line.answer == OK)
        counts: Counter[str] = Counter()
        for prompt in items.prompts:
            counts["generated twice"] += paid[prompt] > 1
            record = records.get(prompt, {})
            if record.get("status") != "ok":
                counts["lost"] += 1
                continue
            path = self.output / MODEL / benchmark / str(record["path"])
            counts["not stored as sent"] += not path.is_file() or path.read_bytes() != as_sent(pngs, prompt)
        return [f"{n} of {len(items.prompts)} {what}" for what, n in counts.items() if n]


def main() -> None:
    """Print the job as JSON: ``command`` and ``environ`` as the launcher would start it, and its ``log``."""
    from imageevalkit.common.machine import available_cores
    from imageevalkit.plan.config import Config
    from imageevalkit.plan.options import parse, resolve
    from imageevalkit.plan.planner import make_plan
    from imageevalkit.run.process import job_environ

    stage, *words = sys.argv[1:]
    plan = make_plan(resolve(parse(words), Config()), Config())
    plan.save()
    job = next(job for job in plan.jobs if job.stage == stage)
    environment = job_environ(job, {}, available_cores())
    json.dump({"command": job.command, "environ": environment, "log": job.logs[0]}, sys.stdout)


if __name__ == "__main__":
    main()
