"""``bash eval.sh --use_api true`` as a test runs it, and what such a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imageevalkit.common.images import sha256_file
from tests.support.checkout import REPO, run_eval
from tests.support.image_server import ImageServer
from tests.support.jobs import commands_in

REPEATS = '''
import os


class Repeats:
    """4 images of each prompt, as LongText-Bench asks for, without its download."""

    def __init__(self):
        self.dataset_name = "repeats"
        self.dataset_task = "t2i"
        self.data = [
            {
                "prompt": f"prompt {number}",
                "seed": seed,
                "image_save_path": os.path.join("<MODEL_NAME>", "repeats", f"{number:04d}_{seed}.png"),
            }
            for number in range(3)
            for seed in range(1, 5)
        ]
'''


def prompts() -> list[str]:
    """The prompts of quicktext, in its order."""
    lines = (REPO / "benchmarks/quicktext/data/prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


@dataclass(frozen=True)
class ApiRuns:
    """Runs in one checkout against one server; images only, no scores."""

    checkout: Path
    server: ImageServer
    key: str = "sk-first-4711-key"

    def run(
        self,
        *more: str,
        models: Sequence[str] = ("model-a",),
        benchmarks: Sequence[str] = ("quicktext",),
        kwargs: str = "",
        limit: int = 6,
        workers: int = 4,
        env: Mapping[str, str] | None = None,
        status: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """One command; ``kwargs`` are those of the only model or, with ``;``, of each."""
        words = ["--model_names", ";".join(models), "--ds_names", ";".join(benchmarks), "--use_api", "true"]
        words += ["--eval", "false", "--num_workers", str(workers), "--limit", str(limit)]
        words += ["--custom_model_kwargses", kwargs] * bool(kwargs)
        given = {"API_KEY": self.key, "BASE_URL": self.server.base_url, **(env or {})}
        return run_eval(self.checkout, *words, *more, status=status, **given)

    def all_records(self, model: str = "model-a", benchmark: str = "quicktext") -> list[dict[str, Any]]:
        """Every record of a cell, the oldest first; empty when it has none."""
        path = self.checkout / "output" / model / benchmark / "generation.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def records(self, model: str = "model-a", benchmark: str = "quicktext") -> dict[str, dict[str, Any]]:
        """The last record of each prompt and seed of a cell, by item."""
        return {record["item"]: record for record in self.all_records(model, benchmark)}

    def of_prompt(self, number: int) -> dict[str, Any]:
        """The last record of quicktext's prompt ``number``."""
        return next(r for r in self.records().values() if r["prompt"] == prompts()[number])

    def statuses(self, model: str = "model-a", benchmark: str = "quicktext") -> dict[str, int]:
        """How many items have which status."""
        return dict(Counter(record["status"] for record in self.records(model, benchmark).values()))

    def images_agree(self, model: str = "model-a", benchmark: str = "quicktext") -> bool:
        """Whether the images on disk are those of the ``ok`` records, byte for byte, and no others."""
        folder = self.checkout / "output" / model / benchmark
        told = {
            record["path"]: record["image_sha256"]
            for record in self.records(model, benchmark).values()
            if record["status"] == "ok"
        }
        found = [path for path in folder.rglob("*") if path.suffix in (".png", ".jpg", ".part")]
        return told == {path.relative_to(folder).as_posix(): sha256_file(path) for path in found}

    def generate_jobs(self) -> list[dict[str, Any]]:
        """The generate jobs of the latest run."""
        summary = max(self.checkout.glob("log/runs/*/summary.json"), key=lambda path: path.stat().st_mtime)
        return [job for job in json.loads(summary.read_text())["jobs"] if job["stage"] == "generate"]

    def generate_processes(self) -> list[int]:
        """The living processes that generate in this checkout; guards are none."""
        return [pid for pid, words in self.commands() if words[1:2] == [b"infer/generate.py"]]

    def commands(self) -> list[tuple[int, list[bytes]]]:
        """The command lines of all living processes that work in this checkout."""
        return commands_in(self.checkout)

    def files_with(self, secret: str) -> list[Path]:
        """The logs and results in which ``secret`` can be read."""
        roots = [self.checkout / "output", self.checkout / "log"]
        files = [path for root in roots for path in root.rglob("*") if path.is_file()]
        return [path for path in files if secret.encode() in path.read_bytes()]

    def answers(self, fault: str = "ok") -> Counter[str]:
        """How often the server has answered each item so."""
        return Counter(request.item for request in self.server.requests if request.fault == fault)


def message(run: subprocess.CompletedProcess[str], words: str) -> str:
    """The one line below a cell of the table of all cells that holds ``words``."""
    lines = [line for line in run.stdout.splitlines() if line.startswith("    ") and words in line]
    assert len(lines) == 1, run.stdout + run.stderr
    return lines[0].strip()


def text_of(run: subprocess.CompletedProcess[str]) -> str:
    """All that a run printed."""
    return run.stdout + os.linesep + run.stderr
