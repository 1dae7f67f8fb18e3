"""The program of a generate job. A launcher runs it in the driver's environment."""

from __future__ import annotations

import functools

from custom_models.load_model import load_model
from imageevalkit.common.errors import run_main
from imageevalkit.generate.job import main

if __name__ == "__main__":
    run_main(functools.partial(main, load_model))
