"""The plain way, for comparison: ``python -m perf.plain_judge --questions FILE --out FILE --workers N``.

A pool of threads as judging scripts have it: in each a synchronous client that reads and encodes the image, makes
a dictionary of it and posts that as JSON; up to three tries, no waiting between them; the results are written at
the end.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

_TRIES = 3


def judge(question: dict[str, Any]) -> str | None:
    """The judge's words about one item, or None after three failures."""
    encoded = base64.b64encode(Path(question["image"]).read_bytes()).decode()
    text, system = ({"type": "text", "text": question[name]} for name in ("user", "system"))
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
            print(f"{question['item']}: {error}")
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    options = parser.parse_args()
    questions = json.loads(options.questions.read_text())
    with ThreadPoolExecutor(options.workers) as pool:
        replies = list(pool.map(judge, questions))
    with options.out.open("w") as file:
        for question, raw in zip(questions, replies, strict=True):
            file.write(json.dumps({"item": question["item"], "raw": raw, "error": ""}) + "\n")


if __name__ == "__main__":
    main()
