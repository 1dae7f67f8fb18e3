"""The plain ways of doing the same work, for comparison: ``python -m perf.plain pool|judge --items FILE …``.

FILE is the ``items.json`` of the benchmark that the toolkit is measured with.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TRIES = 3
Items = Sequence[Mapping[str, str]]


def pool(items: Items, options: argparse.Namespace) -> None:
    """Images through an API: one forked process per worker, the items dealt out beforehand (worker n takes every N-th).

    In each a synchronous ``openai`` client; every image is decoded, converted to RGB and encoded again by
    ``image.save``. Faults are left to the client's own retries, five tries instead of its three, so that fewer images
    are lost.
    """
    context = multiprocessing.get_context("fork")
    prompts = list(enumerate(item["prompt"] for item in items))
    shares = [
        context.Process(target=_make_images, args=(prompts[n :: options.workers], options.out))
        for n in range(options.workers)
    ]
    for share in shares:
        share.start()
    for share in shares:
        share.join()


def _make_images(prompts: Sequence[tuple[int, str]], out: Path) -> None:
    from openai import OpenAI
    from PIL import Image

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
            image.save(out / f"{number:04d}.png")


def judge(items: Items, options: argparse.Namespace) -> None:
    """Questions about images to an API: a pool of threads as judging scripts have it.

    In each a synchronous client that reads and encodes the image, makes a dictionary of it and posts that as JSON; up
    to three tries, no waiting between them; the results are written at the end.
    """
    import requests

    def ask(item: Mapping[str, str]) -> str | None:
        encoded = base64.b64encode((options.images / item["file"]).read_bytes()).decode()
        text, system = ({"type": "text", "text": item[name]} for name in ("user", "system"))
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
        payload = {
            "model": "some-judge",
            "messages": [{"role": "system", "content": [system]}, {"role": "user", "content": [text, image]}],
            "temperature": 0.0,
            "max_tokens": 500,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        for _ in range(_TRIES):
            try:
                headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
                url = f"{os.environ['BASE_URL']}/chat/completions"
                reply = requests.post(url, headers=headers, json=payload, timeout=300)
                reply.raise_for_status()
                return str(reply.json()["choices"][0]["message"]["content"])
            except (requests.RequestException, KeyError) as error:
                print(f"{item['file']}: {error}")
        return None

    with ThreadPoolExecutor(options.workers) as threads:
        replies = list(threads.map(ask, items))
    lines = [{"item": item["file"], "raw": raw} for item, raw in zip(items, replies, strict=True)]
    (options.out / "replies.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def main() -> None:
    ways = {"pool": pool, "judge": judge}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=ways)
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes or threads")
    parser.add_argument("--images", type=Path, help="of judge: the folder of the items' files")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    ways[options.way](json.loads(options.items.read_text(encoding="utf-8")), options)


if __name__ == "__main__":
    main()
