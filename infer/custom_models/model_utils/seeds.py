"""Seeds of every random generator that authors' code may draw from."""

from __future__ import annotations

import random


def set_seeds(seed: int) -> None:
    """Seed Python, NumPy and torch (CPU and all GPUs) before an image; NumPy takes the seed modulo 2**32."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
