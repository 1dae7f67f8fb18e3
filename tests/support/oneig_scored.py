"""OneIG-Bench on its real prompts, and what evaluators might say of their images."""

from __future__ import annotations

import ast
import functools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.oneig.benchmark import OneIG, OneIGSettings, OneIGZh
from benchmarks.oneig.data import CHINESE, QUESTION_TEXT, READING_TEXT, Edition, Prompt, Task
from benchmarks.oneig.scores import Run, ScoredPrompt
from eval_models.encoders.dreamsim import packed
from imageevalkit.assets import FileAsset
from imageevalkit.benchmark.contract import Answers, Rules, ScoredItem
from imageevalkit.benchmark.question import Answer, measure
from imageevalkit.store.cell import REPO
from imageevalkit.store.items import Item
from imageevalkit.store.results import Score
from tests.support.mirror import shared_mirror

RULES: tuple[Rules, ...] = ("official", "corrected")
TEXTS = {QUESTION_TEXT: "{question}. Yes or no?", READING_TEXT: "Read."}
NOTHING = ("No text recognized", "No text recognized.")
_ANSWERS = ("Yes", "Yes", "Yes", "Yes", "No", "No", "Yes.", "yes", "是", "")
# of length 1, with inner products that are exact in binary
_EMBEDDINGS = (
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.5, 0.5, 0.5, 0.5),
    (0.5, -0.5, 0.5, -0.5),
    (0.5, 0.5, -0.5, -0.5),
)
_HERE = Path("0.png")
_ITEM = Item("images/object/000_1", _HERE, 43, "a cat", None, {})

GONE = ScoredItem(_ITEM, None, Answers({}), {}, None)
"""An image that is not there."""
BLACK = ScoredItem(_ITEM, _HERE, Answers({}), {}, Score({}))
"""An image of which official rules ask nothing, since it is black."""


class PromptImages(NamedTuple):
    """A prompt, and what was said of each of its images."""

    prompt: Prompt
    images: Sequence[ScoredItem]


def embedding_text(values: Sequence[float]) -> str:
    """The text of DreamSim's answer."""
    return json.dumps({"embedding": packed(values)})


def image(path: Path = _HERE, **values: Any) -> ScoredItem:
    """An image with the ``values`` by task: of alignment the answers by number, of diversity the embedding."""
    answers: dict[str, Answer] = {}
    for task, value in values.items():
        said = {f"{task}/{n}": text for n, text in value.items()} if task == "alignment" else {task: value}
        for name, one in said.items():
            text = embedding_text(one) if task == "diversity" else json.dumps(one)
            answers[name] = Answer(measure(name), text, value=one)
    return ScoredItem(_ITEM, path, Answers(answers), {}, None)


def run_of(prompts: Sequence[PromptImages], tasks: Sequence[Task], rules: Rules, edition: Edition) -> Run:
    """The run that made ``prompts``."""
    scored = [
        ScoredPrompt(one.prompt, [*map(_of_prompt(one.prompt), one.images)], rules, edition.language)
        for one in prompts
    ]
    classes = list(CHINESE.sizes)
    scored.sort(key=lambda one: (classes.index(one.prompt.class_item), one.prompt.id))
    return Run(scored, tasks, rules, edition, "m")


def _of_prompt(prompt: Prompt) -> Callable[[ScoredItem], ScoredItem]:
    """Gives an image an item of that prompt."""
    item = replace(_ITEM, id=f"images/{prompt.class_item}/{prompt.id}_1")
    return lambda image: image._replace(item=item)


def real_benchmark(edition: Edition, judge: str = "", **settings: Any) -> OneIG:
    """The benchmark on its real prompts, asking with :data:`TEXTS`; skips the test without the official files."""

    found = (OneIGZh if edition is CHINESE else OneIG)(OneIGSettings(**settings), judge)
    vars(found).update(prompts=TEXTS, _prompts={prompt.key: prompt for prompt in real_prompts(edition)})
    return found


def real_prompts(edition: Edition) -> list[Prompt]:
    """All of them; skips the test where the official files are not at hand."""
    return _read(edition.name, shared_mirror())


@functools.lru_cache
def _read(name: str, mirror: Path) -> list[Prompt]:
    benchmark = OneIGZh if name == CHINESE.name else OneIG
    with TemporaryDirectory() as folder:
        for asset in benchmark.assets:
            if isinstance(asset, FileAsset):
                (Path(folder) / asset.path).symlink_to(mirror / asset.source)

        class OnMirror(benchmark):  # type: ignore[valid-type, misc]
            data = Path(folder)

        return list(OnMirror()._prompts.values())


def transcriptions(raw: str, seed: int) -> list[str]:
    """Returns readings of a judge for the text ``raw``: right, then increasingly wrong, then empty."""
    rng = random.Random(seed)
    right = "\n".join(ast.literal_eval(raw))
    letters = list(right)
    for _ in range(1 + len(letters) // 12):
        place = rng.randrange(len(letters))
        letters[place : place + 2] = reversed(letters[place : place + 2])
    words = right.split(" ")
    return [
        right,
        raw,
        "".join(letter for letter in right if rng.random() > 0.1),
        "".join(letters),
        " ".join(rng.sample(words, len(words))),
        right.swapcase(),
        "".join(letter + rng.choice(["", "", "", "!", "-", "’", " ", "，"]) for letter in right),
        f"addCriterion\n{right[: len(right) // 2]}\naddCriterion",
        f"{right[:40]} {NOTHING[0]}",
        f"{right[-40:]}\n{NOTHING[1]}",
        *NOTHING,
        "",
    ]


def image_values(prompt: Prompt, place: int) -> Mapping[str, Any]:
    """Returns the values of an image in every task (see :func:`image`); the same each time."""
    rng = random.Random(f"{prompt.class_item}/{prompt.id}/{place}")
    of_question = {question: rng.choice(_ANSWERS) for question in prompt.questions.values()}
    low = -0.6 if rng.random() < 0.2 else 0.0
    return {
        "alignment": {number: of_question[question] for number, question in prompt.questions.items()},
        "text": rng.choice(transcriptions(prompt.expected_text, place)) if prompt.expected_text else "",
        "reasoning": [rng.uniform(-0.1, 0.5), rng.uniform(-0.1, 0.5)],
        "style": [
            [rng.uniform(low, low + 0.6) for _ in range(3)],
            [rng.randrange(256) / 256 + low for _ in range(3)],
            [rng.uniform(low, low + 0.6) for _ in range(3)],
        ],
        "diversity": rng.choice(_EMBEDDINGS),
    }


def image_of(prompt: Prompt, place: int) -> ScoredItem:
    """An image with answers of every task; the same each time."""
    path = REPO / f"output/m/oneig/images/{prompt.class_item}/{prompt.id}_{place + 1}.png"
    return image(path, **image_values(prompt, place))
