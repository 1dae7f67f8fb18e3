"""The plain clients for comparison: ``python -m perf.plain images|judge ITEMS OUT WORKERS``.

Each is a pool of threads with a synchronous client, as scripts of benchmarks have it. ITEMS is the ``items.json`` of
the measured benchmark, OUT the folder of the images.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Items = Sequence[Mapping[str, str]]


def images(items: Items, rules: str, out: Path, workers: int) -> None:
    """Requests all images, decodes each one to see that it is whole, and stores its bytes."""
    from openai import OpenAI
    from PIL import Image

    client = OpenAI(api_key=os.environ["API_KEY"], base_url=os.environ["BASE_URL"])

    def make(item: Mapping[str, str]) -> None:
        reply = client.images.generate(model="some-served-model", prompt=item["prompt"])
        assert reply.data and reply.data[0].b64_json
        data = base64.b64decode(reply.data[0].b64_json)
        with Image.open(io.BytesIO(data)) as image:
            image.load()
        (out / item["file"]).write_bytes(data)

    (out / "images").mkdir(parents=True)
    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(make, items))


def judge(items: Items, rules: str, out: Path, workers: int) -> None:
    """Asks one question about each image and writes the replies at the end."""
    import requests

    headers = {"Authorization": f"Bearer {os.environ['API_KEY']}"}

    def ask(item: Mapping[str, str]) -> str:
        encoded = base64.b64encode((out / item["file"]).read_bytes()).decode()
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
        text = f"{rules}\n\nPROMPT: {item['prompt']}"
        message = {"role": "user", "content": [{"type": "text", "text": text}, image]}
        payload = {"model": "some-judge", "messages": [message], "temperature": 0.0, "max_tokens": 500}
        url = f"{os.environ['BASE_URL']}/chat/completions"
        reply = requests.post(url, headers=headers, json=payload, timeout=300)
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(workers) as threads:
        replies = list(threads.map(ask, items))
    lines = [{"item": item["file"], "raw": raw} for item, raw in zip(items, replies, strict=True)]
    (out / "replies.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    way, file, folder, number = sys.argv[1:]
    work = json.loads(Path(file).read_bytes())
    {"images": images, "judge": judge}[way](**work, out=Path(folder), workers=int(number))
