"""The plain way, for comparison: ``python perf/static_pool.py --prompts FILE --out FOLDER --workers N``.

One forked process per worker, the items dealt out beforehand (worker n takes every N-th), in each process a synchronous
``openai`` client; every image is decoded, converted to RGB and encoded again by ``image.save``. Faults are left to the
client's own retries, five tries instead of its three, so that fewer images are lost.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import multiprocessing
import os
from pathlib import Path

from openai import OpenAI
from PIL import Image


def generate(prompts: list[tuple[int, str]], folder: Path) -> None:
    """One worker: its prompts one after another."""
    client = OpenAI(api_key=os.environ["API_KEY"], base_url=os.environ["BASE_URL"], max_retries=4)
    for number, prompt in prompts:
        try:
            reply = client.images.generate(model="some-served-model", prompt=prompt)
            assert reply.data and reply.data[0].b64_json
            data = base64.b64decode(reply.data[0].b64_json)
            image = Image.open(io.BytesIO(data)).convert("RGB")
        except Exception as error:
            print(f"{prompt}: {error}")
        else:
            image.save(folder / f"{number:04d}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="a JSON array")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    prompts = list(enumerate(json.loads(options.prompts.read_text())))
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=generate, args=(prompts[n :: options.workers], options.out))
        for n in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
