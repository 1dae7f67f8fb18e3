"""T2I-CoReBench (arXiv 2509.03516): 1,080 long prompts in twelve dimensions of composition and reasoning.

The judge answers a checklist of yes/no questions about each image, one question per call. ``quirk`` comments
mark odd behaviour of the official program. A fix would change published numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    Accepts,
    Answer,
    Message,
    Picture,
    Question,
    Sampling,
)
from imageevalkit.metrics import arithmetic_mean, grouped, mean, mean_by, points, weighted
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

COMPOSITION = ("C-MI", "C-MA", "C-MR", "C-TR")
REASONING = ("R-LR", "R-BR", "R-HR", "R-PR", "R-GR", "R-AR", "R-CR", "R-RR")
DIMENSIONS = (*COMPOSITION, *REASONING)
_PROMPTS = 90
_CHANGED = ("R-HR", "R-LR")
"""The dimensions with other data in the edition of 2026."""
_TEMPLATE = "evaluate.py::TEMPLATE"
_END_OF_THOUGHTS = "</think>\n\n"
_ANSWER = re.compile(r"[\W_]*(yes|no)[\W_]*")
_QWEN = "vllm:Qwen/Qwen"
_KINDS = ("Instruct", "Thinking")
JUDGES = (
    "openai:gemini-2.5-flash",
    f"{_QWEN}2.5-VL-72B-Instruct",
    *(f"{_QWEN}3-VL-{size}-{kind}" for size in ("30B-A3B", "235B-A22B") for kind in _KINDS),
)
NEW_JUDGES = (
    *(f"{_QWEN}3-VL-{size}-{kind}" for size in ("8B", "32B") for kind in _KINDS),
    *(f"{_QWEN}3.5-{size}" for size in ("9B", "27B", "35B-A3B")),
)
"""Official judges of the edition of 2026 alone."""


@dataclass(frozen=True)
class CoReBenchSettings(Settings):
    """``edition=2026`` selects the authors' data and program of March 2026 instead of the paper's."""

    edition: Literal[2025, 2026] = field(default=2025, metadata={"decides": True})


class CoReBench(Benchmark):
    """4,320 images. The dimensions alternate, so any first N images cover all of them."""

    name, title = "t2icorebench", "T2I-CoReBench"
    version = "corebench-5d523d3"  # data and prompt are from KwaiVGI/T2I-CoReBench at this commit
    headline = ("overall",)
    item_values = ("score",)
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    hub_dataset = "lioooox/T2I-CoReBench"
    prompt_count, images_per_prompt = _PROMPTS * len(DIMENSIONS), 4
    judge = JUDGES[0]
    official_judges = (*JUDGES, *NEW_JUDGES)
    has_corrected_rules = True
    settings_class = CoReBenchSettings

    settings: CoReBenchSettings

    def __init__(self, settings: CoReBenchSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.is_new = self.settings.edition == 2026
        self.official = self.official_judges if self.is_new else JUDGES
        self.is_local = self.backend != "openai"
        # the program of 2025 asks a local judge once, whatever its reply is
        self.tries = 1 if self.is_local and self.is_official and not self.is_new else 3
        self.pixels = QWEN_VL_UTILS if self.backend == "vllm" else None
        # the official program reads only the content of a reply
        self.accepts: Accepts = "any" if self.is_official else "ended"

    def samples(self) -> Iterable[Sample]:
        new = _CHANGED if self.is_new else ()
        files = [f"data/{one}.json" if one in new else f"{one}.json" for one in DIMENSIONS]
        for prompts in zip(*(self.read_json(file, _PROMPTS).items() for file in files), strict=True):
            for number in range(self.images_per_prompt):
                for dimension, (name, record) in zip(DIMENSIONS, prompts, strict=True):
                    data = {"dimension": dimension, "prompt_id": name, "record": record}
                    file = f"images/{dimension}/{name}-{number}.png"
                    yield Sample(file, record["Prompt"], number, data)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        for number, entry in enumerate(item.data["record"]["Checklist"]):
            name = f"question/{number}"
            attempt = answers.attempt(name)
            text = f'Prompt: "{item.prompt}"\nQuestion: "{entry["question"]}"'
            sampling, start = Sampling(None, 0.0), []
            if self.is_local:
                penalty = {"repetition_penalty": 1.05} if self.backend == "vllm" else {}
                most = min(512 * 4**attempt, 8192) if self.is_new else 8192
                sampling = Sampling(most, 0.0, extra=penalty)
                start = [Message("system", (self.prompts[_TEMPLATE],))]
            else:
                text = f"{self.prompts[_TEMPLATE]}\n{text}"
            messages = (*start, Message("user", (image, text)))
            # parse() must know the last attempt, so each attempt is a question of its own
            yield Question(name, messages, sampling, data=attempt, accepts=self.accepts, repeat=attempt)

    def parse(self, question: Question, answer: Answer) -> int | str:
        """Returns 1 for yes, 0 for no, and by official rules "" for any other reply: it does not count.

        Official rules ask again only if the reply is empty. Corrected rules accept the single word alone.
        """
        reply = self._conclusion(answer.text or "")
        if not self.is_official:
            found = _ANSWER.fullmatch(reply.lower())
            if found is None:
                raise Unparsed("neither yes nor no", reply)
            return int(found[1] == "yes")
        if not reply.strip() and question.data + 1 < self.tries:
            raise Unparsed("an empty reply")
        if not self.is_local:
            reply = reply.lower()  # quirk: "Yes" and "No" of a local judge do not count
        # quirk: a yes anywhere in the reply beats a no
        return 1 if re.search(r"\byes\b", reply) else 0 if re.search(r"\bno\b", reply) else ""

    def _conclusion(self, reply: str) -> str:
        """Returns the part of a reply after the judge's thoughts."""
        if not self.is_official:
            return reply.rpartition("</think>")[2]
        if not self.is_local:
            return reply
        name = self.judge.lower()
        if self.is_new and not ("thinking" in name or "qwen3.5" in name):
            return reply
        _, end, conclusion = reply.rpartition(_END_OF_THOUGHTS)
        # quirk: without this end, the program of 2025 searches the thoughts for a yes
        return "" if self.is_new and not end else conclusion

    def score(self, item: Item, answers: Answers) -> Score:
        """Returns the share of yes. Each question that counts is a point; an image without any has no
        value."""
        checklist = item.data["record"]["Checklist"]
        values = [answers[f"question/{number}"].value for number in range(len(checklist))]
        # quirk: a question without yes or no leaves the denominator
        counted = [(entry, value) for entry, value in zip(checklist, values, strict=True) if value != ""]
        return Score(
            {"score": arithmetic_mean(value for _, value in counted)} if counted else {},
            {key: item.data[key] for key in ("dimension", "prompt_id")},
            {entry["question"]: value for entry, value in zip(checklist, values, strict=True)},
            [
                # quirk: the data have two spellings of this tag
                Score(
                    {"yes": value}, {"tags": [tag.replace("multi_hop", "multi-hop") for tag in entry["tags"]]}
                )
                for entry, value in counted
            ],
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns the metrics in percent. Intervals treat the images of a prompt as one cluster.

        * ``overall``, ``composition``, ``reasoning``: the mean of twelve, four and eight dimensions; no value
          if a dimension has no score. ``C-MI``, …: the mean over the images of a dimension.
        * ``questions``, ``questions/C-MI``, …: the share of yes among all questions. ``tag/<tag>``: among the
          questions with a tag.
        """
        scored = [score for score in scores if score.values]
        asked = points(scored)
        options: dict[str, Any] = {"percent": True, "cluster": "prompt_id"}
        groups = {"overall": DIMENSIONS, "composition": COMPOSITION, "reasoning": REASONING}
        found = dict[str, Metric]()
        for name, group in groups.items():
            mine = [score for score in scored if score.keys["dimension"] in group]
            shares = dict.fromkeys(group, 1 / len(group))
            found[name] = weighted(mine, "score", "dimension", shares, **options)
        found |= mean_by(scored, "score", "dimension", order=DIMENSIONS, **options)
        found["questions"] = mean(asked, "yes", **options)
        found |= mean_by(asked, "yes", "dimension", prefix="questions/", order=DIMENSIONS, **options)
        for tag in dict.fromkeys(tag for point in asked for tag in point.keys["tags"]):
            tagged = [point for point in asked if tag in point.keys["tags"]]
            found[f"tag/{tag}"] = mean(tagged, "yes", **options)
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        values = [value for score in scores for value in score.detail.values()]
        if not (lost := values.count("")):
            return []
        images = sum(not score.values for score in scores)
        return [
            f"{lost} of {len(values)} replies hold neither yes nor no and do not count, as in the official "
            f"program; {images} of {len(scores)} images have no other reply"
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """``<model>/<dimension>-<judge>.json``, with the judge's name as in the program of 2026."""
        words = re.split(r"\W", re.split("[:/]", self.judge)[-1])
        judge = "_".join(word[:1].upper() + word[1:] for word in words)
        done = sorted(
            (Path(score.item).name, one.item, score) for one in scores.items if (score := one.score)
        )
        found = {}
        for dimension, images in grouped(done, lambda one: one[1].data["dimension"]).items():
            content: dict[str, Any] = {}
            for name, item, score in images:
                record, values = item.data["record"], score.detail.values()
                marked = zip(record["Checklist"], values, strict=True)
                checklist = [{**entry, "score": value} for entry, value in marked]
                value = score.values.get("score", "")
                content[name] = {**record, "Checklist": checklist, "image_score": value}
            if counted := [score.values["score"] for _, _, score in images if score.values]:
                content["mean_score"] = arithmetic_mean(counted)
                file = f"{images[0][1].model}/{dimension}-{judge}.json"
                found[file] = json.dumps(content, ensure_ascii=False, indent=2)
        return found
