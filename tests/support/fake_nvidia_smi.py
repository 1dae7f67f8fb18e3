"""A fake ``nvidia-smi`` that lists the GPUs a test wants; it answers the one query that is asked."""

from __future__ import annotations

import os
from pathlib import Path


def install_fake_nvidia_smi(folder: Path, uuids: list[str], failure: str = "") -> dict[str, str]:
    """Put the fake into ``folder``; returns an environment that finds it, without CUDA_VISIBLE_DEVICES."""
    rows = "".join(f"{index}, {uuid}\\n" for index, uuid in enumerate(uuids))
    fake = folder / "nvidia-smi"
    answer = f"echo '{failure}'; exit 18" if failure else f"printf '{rows}'"
    fake.write_text(
        f"""#!/bin/sh
[ "$*" = "--query-gpu=index,uuid --format=csv,noheader" ] || {{ echo "unexpected: $*"; exit 2; }}
{answer}
"""
    )
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    return environ
