"""A benchmark with files of its own, declared in an asset manifest, and a mirror that holds them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

COMMIT = "ab" * 20
FILES = {"prompts.jsonl": b'{"prompt": "a cat"}\n' * 50, "more/questions+1.json": b"[1, 2, 3]\n"}


def entry(path: str, data: bytes) -> dict[str, object]:
    """The manifest entry of one file."""
    return {
        "path": path,
        "source": {"repo": "owner/name", "commit": COMMIT, "path": f"upstream/{path}"},
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "licence": "Apache-2.0",
    }


def write_benchmark(benchmarks: Path, name: str = "tiny") -> Path:
    """Declare :data:`FILES` as the assets of a benchmark; return its (still absent) data folder."""
    folder = benchmarks / name
    folder.mkdir(parents=True)
    manifest = [entry(path, data) for path, data in FILES.items()]
    (folder / "assets.json").write_text(json.dumps(manifest))
    return folder / "data"


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
