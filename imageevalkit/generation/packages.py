"""The packages that had a part in making the images, for provenance."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from imageevalkit.environment_hash import environment_hash

# Distributions whose version can change a pixel; only those a run has imported count.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "torch": "torch",
    "diffusers": "diffusers",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "httpx2": "httpx2",
    "numpy": "numpy",
    # where it is absent, torch's own attention stands in for it
    "flash_attn": "flash-attn",
    "peft": "peft",
}


def installed_packages() -> dict[str, str]:
    """Versions by distribution name, with ``python``, the ``environment``'s hash and, where torch sees them, the names
    of the ``gpus``."""
    versions = {"python": platform.python_version(), "environment": environment_hash()}
    for module, distribution in _DISTRIBUTIONS.items():
        if module in sys.modules:
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                continue
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        versions["gpus"] = ", ".join(names)
    return versions
