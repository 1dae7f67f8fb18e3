"""The generate job as a program: what a launcher runs in the environment of its models."""

from __future__ import annotations

import functools

from custom_models.load_model import load_model
from imageevalkit.errors import run_main
from imageevalkit.generation.job import main

if __name__ == "__main__":
    run_main(functools.partial(main, load_model))
