"""Attention of torch on a CPU whose instructions ATEN_CPU_CAPABILITY hides."""

from __future__ import annotations

import os


def use_plain_attention() -> None:
    """Turn off torch's attention kernel if ATEN_CPU_CAPABILITY is set.

    The kernel asks the CPU itself whether it packs bfloat16, and then fails in code that was compiled for fewer
    instructions: "pack_vnni2 is only supported when avx512 is supported".
    """
    if os.environ.get("ATEN_CPU_CAPABILITY"):
        import torch

        torch.backends.cuda.enable_flash_sdp(False)  # the switch of the CPU's kernel, too
