"""A benchmark with files of its own, declared as its assets, and a mirror that holds them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from imageevalkit.assets import BenchmarkFiles, github

COMMIT = "ab" * 20
FILES = {"prompts.jsonl": b'{"prompt": "a cat"}\n' * 50, "more/questions+1.json": b"[1, 2, 3]\n"}
FACTS = {
    path: (f"upstream/{path}", hashlib.sha256(data).hexdigest(), len(data)) for path, data in FILES.items()
}

_BENCHMARK = """
from imageevalkit.assets import github
from imageevalkit.benchmark.contract import Benchmark, Sample


class Tiny(Benchmark):
    name, version, headline = "{name}", "1", ("none",)
    assets = github("owner/name", "{commit}", {files!r}, licence="Apache-2.0")

    def samples(self):
        return [Sample("images/0.png", "a cat")]

    def questions(self, item, image, answers):
        return []

    def score(self, item, answers):
        raise NotImplementedError

    def metrics(self, scores):
        return {{}}
"""


def tiny_files(name: str = "tiny") -> BenchmarkFiles:
    """:data:`FILES` as those of a benchmark."""
    return BenchmarkFiles(name, github("owner/name", COMMIT, FACTS, licence="Apache-2.0"))


def write_benchmark(benchmarks: Path, folder: str = "tiny") -> Path:
    """A benchmark in ``folder`` that needs :data:`FILES`; returns its (still absent) data folder."""
    (benchmarks / folder).mkdir(parents=True)
    code = _BENCHMARK.format(name=folder.replace("_", "-"), commit=COMMIT, files=FACTS)
    (benchmarks / folder / "benchmark.py").write_text(code)
    return benchmarks / folder / "data"


def write_files(root: Path) -> None:
    """Write :data:`FILES` below ``root``."""
    for path, data in FILES.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def write_mirror(root: Path) -> Path:
    """A mirror folder that holds :data:`FILES`."""
    write_files(root / "owner" / "name" / COMMIT / "upstream")
    return root
