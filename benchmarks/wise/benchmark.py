"""WISE (arXiv 2503.07265): 1,000 prompts that require world knowledge, in three editions.

``quirk`` comments mark odd behaviour of the official program. A fix would change which replies have a score.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path

from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import Answers, Benchmark, Sample, Scores, Settings, Unparsed
from imageevalkit.benchmark.question import Answer, Message, Picture, Question, Sampling
from imageevalkit.metrics import grouped, groups, mean_by, spread, total, weighted, weighted_sum
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

_QUESTION = "score"
_FUNCTION = "build_evaluation_messages"
_DOMAINS: Mapping[str, Sequence[str]] = {
    "cultural_common_sense": ("culture",),
    "spatio-temporal_reasoning": ("time", "space"),
    "natural_science": ("biology", "physics", "chemistry"),
}
"""The categories in each data file, by the stem of the file."""


def _categories(*sizes: int) -> dict[str, range]:
    """Returns the range of prompt ids of each category. The id alone decides the category; ranges are
    adjacent."""
    names = chain.from_iterable(_DOMAINS.values())
    ends = zip(names, sizes, accumulate(sizes), strict=True)
    return {name: range(end - size + 1, end + 1) for name, size, end in ends}


# quirk: only this may stand between name and digit, so "**Score:** 1" and a full-width colon yield no score
_BETWEEN = r"\*{0,2}\s*(?::\s*)?"
_LABEL = rf"(consistency|realism|aesthetic quality){_BETWEEN}"
# quirk: one digit of any script, up to 9, whatever follows it ("12" and "1.5" are 1); the last match per name
# counts
_DIGIT = re.compile(rf"{_LABEL}(\d)", re.IGNORECASE)
_NUMBER = re.compile(rf"{_LABEL}(\d+(?:\.\d+)?)", re.IGNORECASE)
# quirk: "Score: 0.5" and "Score: 0/1" are 0, "Score: 10" does not match; "score" may end a longer word
_BIT = re.compile(rf"score{_BETWEEN}([01])\b", re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_THOUGHT_END = re.compile(r"</think>\s*")


class Wise(Benchmark):
    """The paper's prompts and protocol (upstream: "legacy"): one image per prompt, one question per image."""

    name, title = "wise", "WISE"
    version = "wise-eb51174"  # data, prompts and rules are from PKU-YuanGroup/WISE at this commit
    prompt_count = 1000
    judge = "openai:gpt-4o-2024-05-13"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    headline = ("overall",)
    official_headline = ("overall_official",)
    tries = 3  # the official evaluators repeat the request if a reply contains no score
    has_corrected_rules = True

    suffix = ""
    program = "WISE_legacy/gpt_eval.py"
    # the legacy README names the files of this domain differently, and its command for the total expects them
    # so
    short_named = "spatio-temporal_reasoning"
    sampling = Sampling(max_tokens=2000, temperature=0.0)
    parts: Sequence[str] = ("consistency", "realism", "aesthetic_quality")
    categories = _categories(400, 167, 133, 100, 100, 100)

    def __init__(self, settings: Settings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        if self.is_official and self.parts:
            self.unbounded = ("*",)  # the official parser accepts any digit as a score

    @property
    def item_values(self) -> Sequence[str]:  # type: ignore[override]
        return ("wiscore", *self.parts)

    def samples(self) -> Iterable[Sample]:
        """Returns the samples, categories and their subcategories interleaved in proportion to their
        sizes."""
        of_category: dict[str, list[Sample]] = {name: [] for name in self.categories}
        for domain, names in _DOMAINS.items():
            category_of = {n: name for name in names for n in self.categories[name]}
            file = f"{domain}{self.suffix}.json"
            records = self.read_json(file, len(category_of))
            with self.content_of(file):
                if sorted(record["prompt_id"] for record in records) != list(category_of):
                    raise ValueError(f"its ids are not {min(category_of)} to {max(category_of)}, each once")
                for record in records:
                    n = record["prompt_id"]
                    texts = [record[name] for name in ("Prompt", "Subcategory", "Explanation")]
                    if not all(isinstance(text, str) and text for text in texts):
                        raise ValueError(f"prompt {n} lacks a text")
                    prompt, subcategory, explanation = texts
                    keys = {"category": category_of[n], "subcategory": subcategory, "prompt_id": n}
                    data = {**keys, "explanation": explanation}
                    of_category[category_of[n]].append(Sample(f"images/{n}.png", prompt, data=data))
        return spread(
            spread(grouped(samples, lambda sample: sample.data["subcategory"]).values())
            for samples in of_category.values()
        )

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterable[Question]:
        system, user = (self.prompts[f"{self.program}::{_FUNCTION}#{role}"] for role in ("system", "user"))
        text = user.format(Prompt=item.prompt, Explanation=item.data["explanation"])
        # the official evaluators declare every file a PNG
        shown = Message("user", (text, image._replace(media_type="image/png")))
        return [Question(_QUESTION, (Message("system", (system,)), shown), self.sampling)]

    def clean(self, reply: str) -> str:
        """Returns the part of a reply that is parsed and stored."""
        return reply

    def parse(self, question: Question, answer: Answer) -> dict[str, float]:
        text = self.clean(answer.text or "")
        scores, needed = self.scores_in(text), self.parts or ("score",)
        if missing := [name for name in needed if name not in scores]:
            raise Unparsed(f"no {', '.join(missing)}", text)
        if not self.is_official and (beyond := self.beyond_scale(text)):
            raise Unparsed(f"beyond the judge's scale: {beyond}")
        return {name: scores[name] for name in needed}

    def scores_in(self, text: str) -> dict[str, float]:
        """Returns the labelled scores; without any label, the first three lines that consist of 0, 1 or 2
        alone.

        Quirk: with a single label bare lines are ignored, so the other scores are missing.
        """
        if labelled := _labelled(_DIGIT, text):
            return labelled
        bare = _bare_lines(text, "012")
        return dict(zip(self.parts, map(float, bare), strict=False)) if len(bare) >= len(self.parts) else {}

    def beyond_scale(self, text: str) -> str:
        """Returns a description of the scores, read with all digits, outside the prompt's scale of 0-2."""
        stated = _labelled(_NUMBER, text).items()
        return ", ".join(f"{part} {value:g}" for part, value in stated if not 0 <= value <= 2)

    def wiscore(self, scores: Mapping[str, float]) -> float:
        """Returns ``(0.7 consistency + 0.2 realism + 0.1 aesthetic quality) / 2``, 0-1 for scores of 0-2.

        The paper's equation omits the division; its tables and the program include it.
        """
        return (0.7 * scores["consistency"] + 0.2 * scores["realism"] + 0.1 * scores["aesthetic_quality"]) / 2

    def score(self, item: Item, answers: Answers) -> Score:
        answer, data = answers[_QUESTION], item.data
        return Score(
            {"wiscore": self.wiscore(answer.value), **{part: answer.value[part] for part in self.parts}},
            {key: data[key] for key in ("category", "subcategory", "prompt_id")},
            {"explanation": data["explanation"], "judge": answer.text},
        )

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        """Returns mean WiScores by category and subcategory; ``overall`` is Σ weight · mean of a category.

        ``overall_official`` has no value unless each of the 1000 prompts has a score: otherwise the official
        program prints nothing. Each part has means on the scale 0-2. ``<part>_sum`` are the sums of the
        paper's tables 3-8, with the overall as the weighted sum of the sums. These exist only for categories
        with a score for every prompt.
        """
        weights = {name: len(ids) / self.prompt_count for name, ids in self.categories.items()}
        # a float sum depends on the order of its terms
        ordered = sorted(scores, key=lambda score: score.keys["prompt_id"])
        zeros = [Score({"wiscore": 0}, one.item.data) for one in scores.items if not one.score]
        overall = weighted(ordered, "wiscore", "category", weights)
        found = {"overall": overall}
        if self.is_official:
            whole = len({score.keys["prompt_id"] for score in ordered}) == self.prompt_count
            found["overall_official"] = overall if whole else Metric(None, len(ordered))
        found["overall_missing_as_0"] = weighted(
            [*ordered, *zeros], "wiscore", "category", weights, interval=False
        )
        found |= mean_by(ordered, "wiscore", "category", order=self.categories)
        found |= mean_by(ordered, "wiscore", "subcategory", prefix="subcategory/")
        of_category = groups(ordered, "category", self.categories)
        for part in self.parts:
            found[part] = weighted(ordered, part, "category", weights, top=2.0, interval=False)
            found |= mean_by(
                ordered, part, "category", prefix=f"{part}/", order=self.categories, top=2.0, interval=False
            )
            sums = {
                name: total(mine, part, top=2.0)
                for name, mine in of_category.items()
                if len(mine) == len(self.categories[name])
            }
            if len(sums) == len(weights):
                top = weighted_sum({name: metric.scale for name, metric in sums.items()}, weights)
                value = weighted_sum({name: metric.value for name, metric in sums.items()}, weights)
                found[f"{part}_sum"] = Metric(value, len(ordered), scale=top or 0.0)
            found |= {f"{part}_sum/{name}": metric for name, metric in sums.items()}
        return found

    def notes(self, scores: Scores) -> Sequence[str]:
        beyond = [
            f"{words} of {one.item.id.removeprefix('images/')}"
            for one in scores.items
            if one.score and (words := self.beyond_scale(self.clean(one.replies[_QUESTION])))
        ]
        if not beyond:
            return []
        return [
            f"{len(beyond)} of the judge's verdicts are beyond its scale of 0 to 2 and count as the official "
            f"program reads them (the first: {beyond[0]}); rules=corrected asks again"
        ]

    def official_files(self, scores: Scores) -> dict[str, str]:
        """Replies and scores of each domain, sorted by prompt id. ``image_path`` is relative to
        ``output/<model>/<benchmark>``."""
        done = sorted((one for one in scores.items if one.score), key=lambda one: one.item.data["prompt_id"])
        files = {}
        for domain, names in _DOMAINS.items():
            replies, records = [], ""
            for one in (one for one in done if one.item.data["category"] in names):
                data, number = one.item.data, {"prompt_id": one.item.data["prompt_id"]}
                reply = {
                    "prompt": one.item.prompt,
                    "key": data["explanation"],
                    "image_path": f"{one.item.id}{one.item.path.suffix}",
                    "evaluation": self.clean(one.replies[_QUESTION]),
                }
                record = {"Subcategory": data["subcategory"], **one.answers[_QUESTION].value}
                replies.append(number | reply)
                records += json.dumps(number | record, ensure_ascii=False) + "\n"
            full, lines = ("", "") if domain == self.short_named else ("_full", "_scores")
            files[f"{domain}{full}_results.json"] = json.dumps(replies, ensure_ascii=False, indent=2)
            files[f"{domain}{lines}_results.jsonl"] = records
        return files


class WiseRewrite(Wise):
    """The paper's rewritten, explicit prompts (its table 2). The judge also sees the rewritten prompts."""

    name, title = "wise-rewrite", "WISE (rewritten prompts)"
    suffix = "_rewrite"
    assets = asset_list(Path(__file__).with_name("assets_rewrite.txt"))


class WiseVerified(Wise):
    """WISE_Verified: upstream's current prompts with a binary score. Ids may mean other prompts than in the
    paper.

    The scores are not comparable with the scores of ``wise``.
    """

    name, title = "wise-verified", "WISE Verified"
    judge = "vllm:qwen3.5-35b-a3b"
    assets = asset_list(Path(__file__).with_name("assets_verified.txt"))
    has_corrected_rules = False

    suffix = "_verified"
    program = "vllm_eval.py"
    short_named = ""
    sampling = Sampling(500, 0.0, extra={"chat_template_kwargs": {"enable_thinking": False}})
    parts = ()
    categories = _categories(400, 120, 120, 120, 120, 120)

    def clean(self, reply: str) -> str:
        """Returns the reply without complete think blocks and stray closing tags, stripped. An open block
        stays."""
        # the pattern stops at the last closing tag: for each later opening tag it would scan the rest of the
        # reply
        thoughts, end, answer = reply.rpartition("</think>")
        return (_THOUGHT_END.sub("", _THOUGHT.sub("", thoughts + end)) + answer.lstrip()).strip()

    def scores_in(self, text: str) -> dict[str, float]:
        """Returns the first labelled score, else the only line that consists of 0 or 1 alone."""
        if labelled := _BIT.search(text):
            return {"score": float(labelled[1])}
        bare = _bare_lines(text, "01")
        return {"score": float(bare[0])} if len(bare) == 1 else {}

    def beyond_scale(self, text: str) -> str:
        return ""  # the parser accepts only 0 and 1

    def wiscore(self, scores: Mapping[str, float]) -> float:
        """Returns the score itself, 0 or 1."""
        return scores["score"]


def _labelled(scores: re.Pattern[str], text: str) -> dict[str, float]:
    return {name.lower().replace(" ", "_"): float(number) for name, number in scores.findall(text)}


def _bare_lines(text: str, digits: str) -> list[str]:
    lines = (line.strip() for line in text.split("\n"))
    return [line for line in lines if len(line) == 1 and line in digits]
