"""The plain way, for comparison: ``python perf/bare_loop.py --model FOLDER --prompts FILE --out FOLDER --batch N``.

A loop over a diffusers pipeline as its documentation shows it; each image is saved where the loop made it. Prints the
time at which each batch was on the disk, as JSON, in seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from diffusers import DiffusionPipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="a JSON array")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    prompts = json.loads(options.prompts.read_text())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pipeline = DiffusionPipeline.from_pretrained(options.model, torch_dtype=torch.float32).to(device)
    pipeline.set_progress_bar_config(disable=True)
    times = []
    for first in range(0, len(prompts), options.batch):
        part = prompts[first : first + options.batch]
        generators = [torch.Generator("cpu").manual_seed(42) for _ in part]
        images = pipeline(part, generator=generators, num_inference_steps=options.steps).images
        for number, image in enumerate(images, first):
            image.save(options.out / f"{number:04d}.png")
        times.append(time.time())
    print(json.dumps(times))


if __name__ == "__main__":
    main()
