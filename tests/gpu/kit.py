"""The toolkit under examination: a copy of the tree that runs ``bash eval.sh`` with models of this examination."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from perf.harness import REPO
from perf.toolkit import BENCHMARK, Toolkit, make_prompts
from tests.gpu.part import Part
from tests.support.checkout import add_model


class Kit(Toolkit):
    """A copy of the tree in ``folder`` with ``images`` prompts.

    Its models run in this Python's environment. Without a GPU it sees none of the machine.
    """

    def __init__(self, part: Part, folder: Path, images: int) -> None:
        super().__init__(folder, make_prompts(images))
        if not part.tiny:
            (self.checkout / "pynvml.py").unlink()  # the tests' fake, which hides all GPUs

    def add(self, name: str, module: str, class_name: str, gpus: int) -> None:
        """Add a model: the class of a module of this tree, on so many GPUs."""
        add_model(self.checkout, name, class_name, f"from {module} import {class_name}\n", gpus=gpus)
        with (self.checkout / "config.local.sh").open("a", encoding="utf-8") as config:
            config.write(f"INFER_ENV_MAP['{name}']='{sys.prefix}'\n")

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start ``bash eval.sh`` with ``words``; its output is piped."""
        environ = self.environ()
        return subprocess.Popen(
            ["bash", str(self.checkout / "eval.sh"), *words],
            env={**environ, "PYTHONPATH": f"{environ['PYTHONPATH']}:{REPO}", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def generate(self, model: str, kwargs: str, *words: str, **env: str) -> str:
        """Generate the images of ``model``; returns the output of the run, whatever its status."""
        words = ("--model_names", model, "--ds_names", BENCHMARK, "--eval", "false", *words)
        output: str = self.start(*words, "--custom_model_kwargses", kwargs, **env).communicate()[0]
        print(output, flush=True)
        return output

    def rate(self, model: str, first: int) -> float:
        """Images per second of a finished run after its first ``first`` images.

        Raises RuntimeError: not all images are there.
        """
        records = self.records("generation.jsonl", BENCHMARK, model)
        times = sorted(
            datetime.fromisoformat(str(record["time"])).timestamp()
            for record in records
            if record["status"] == "ok"
        )
        if len(times) < len(self.prompts):
            errors = [str(record.get("error")) for record in records if record["status"] != "ok"]
            raise RuntimeError(
                f"{len(times)} of {len(self.prompts)} images of {model}: {'; '.join(errors[:1]) or self.last_words()}"
            )
        return (len(times) - first) / (times[-1] - times[first - 1])

    def last_words(self) -> str:
        """Returns the end of the newest log of a job."""
        logs = sorted(self.log.rglob("*.log"), key=lambda path: path.stat().st_mtime)
        return logs[-1].read_text(errors="replace")[-300:] if logs else "no log"

    def result(self, model: str, benchmark: str) -> dict[str, object]:
        """Returns ``result.json``; empty where there is none."""
        with contextlib.suppress(OSError):
            found: dict[str, object] = json.loads(
                (self.output / model / benchmark / "result.json").read_text("utf-8")
            )
            return found
        return {}
