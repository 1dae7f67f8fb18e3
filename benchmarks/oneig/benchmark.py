"""OneIG-Bench, English and Chinese: several images per prompt, scored in five tasks by a judge and by
encoders."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.oneig import summary
from benchmarks.oneig.data import (
    CHINESE,
    ENGLISH,
    QUESTION_TEXT,
    READING_TEXT,
    TASKS,
    Edition,
    Prompt,
    Task,
    read_prompts,
)
from benchmarks.oneig.scores import (
    OFFICIAL,
    TEXT_PARTS,
    TOTAL,
    Run,
    ScoredPrompt,
    check_package,
    is_padding,
    max_tokens,
    metrics,
    shown_score,
)
from imageevalkit.assets import asset_list
from imageevalkit.benchmark.contract import (
    JUDGE,
    Answers,
    Benchmark,
    Measurer,
    Sample,
    Scores,
    Settings,
    Unparsed,
)
from imageevalkit.benchmark.question import (
    QWEN_VL_UTILS,
    Answer,
    Encoding,
    Message,
    Picture,
    PixelRule,
    Question,
    Sampling,
    measure,
)
from imageevalkit.common.errors import CellFailure, UserError, suggest
from imageevalkit.common.grids import Grid, is_black
from imageevalkit.metrics import grouped, spread
from imageevalkit.store.items import Item
from imageevalkit.store.results import Metric, Score

IMAGES_PER_PROMPT = 4  # the recommendation of the official README
_SEED = 42  # the seed of the official code and of AISBench, whose judge samples its answers
# the official splitter saves every image as JPEG with Pillow's defaults, so evaluators must see its losses
_JPEG = Encoding("JPEG")
PIXELS = PixelRule("oneig", turned=False, multiple=QWEN_VL_UTILS.multiple)
"""The official splitter ignores EXIF data and drops transparency. Its files then go through qwen_vl_utils."""
_UPRIGHT = PIXELS._replace(name="oneig upright", turned=True)


@dataclass(frozen=True)
class OneIGSettings(Settings):
    """Settings of OneIG-Bench; see docs/benchmarks/oneig.md.

    ``grid`` is one layout for all models or a layout by model; it also sets ``images_per_prompt`` if that is
    None. ``weights`` maps names of weights to paths or hub ids.
    """

    tasks: str = ",".join(TASKS)
    images_per_prompt: int | None = None
    grid: str | Mapping[str, str] | None = field(default=None, metadata={"images_elsewhere": True})
    weights: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 32

    def __post_init__(self) -> None:
        if not self.chosen:
            raise UserError(f"OneIG's tasks are {self.tasks!r}: name some of {', '.join(TASKS)}")
        if min(self.count, self.batch_size) < 1:
            raise UserError("OneIG's images_per_prompt and batch_size are whole numbers of at least 1")
        if any(grid.cells != self.count for grid in self.grids.values()):  # results would not be comparable
            raise UserError(f"OneIG's grid must have {self.count} cells, the images_per_prompt of all models")
        if "diversity" in self.chosen and self.count == 1:
            raise UserError("OneIG has no diversity if images_per_prompt is 1: choose other tasks")

    @property
    def chosen(self) -> tuple[Task, ...]:
        """The chosen tasks in the official order. Raises UserError if a name is no task."""
        words = self.tasks.replace(",", " ").replace(";", " ").split()
        for word in words:
            if word not in TASKS:
                raise UserError(f"OneIG has no task {word!r}{suggest(word, TASKS)}, only {', '.join(TASKS)}")
        return tuple(task for task in TASKS if task in words)

    @property
    def count(self) -> int:
        """The number of images per prompt."""
        of_grids = next((grid.cells for grid in self.grids.values()), IMAGES_PER_PROMPT)
        return of_grids if self.images_per_prompt is None else self.images_per_prompt

    @property
    def grids(self) -> Mapping[str, Grid]:
        """The grids by model; the key "" means any model. Raises UserError if a grid is malformed."""
        if self.grid is None:
            return {}
        by_model = self.grid if isinstance(self.grid, Mapping) else {"": self.grid}
        return {model: Grid.parse(grid) for model, grid in by_model.items()}


@functools.cache  # a run asks 100,000 questions
def _sampling(judge: str, official: Sequence[str], tokens: int) -> Sampling:
    """Returns the sampling of the judge. The official code uses the defaults of the checkpoint.

    Qwen2.5-VL is greedy in effect, with a repetition penalty of 1.05; Qwen3-VL, AISBench's judge, samples. A
    server gets temperature 0; only vLLM accepts the penalty.
    """
    backend, _, model = judge.partition(":")
    if backend == "transformers":
        return Sampling(tokens, None, None if judge in official else _SEED)
    penalised = backend == "vllm" and "qwen2.5-vl-7b" in model.rpartition("/")[2]
    return Sampling(tokens, 0.0, extra={"repetition_penalty": 1.05} if penalised else {})


class OneIG(Benchmark):
    """The English edition. Each prompt that a chosen task scores gets ``images_per_prompt`` images."""

    name, title = "oneig", "OneIG-Bench EN"
    hub_dataset = "OneIG-Bench/OneIG-Bench"
    # data, prompts and rules are from OneIG-Bench/OneIG-Benchmark at this commit
    version = "oneig-41b4983"
    assets = asset_list(Path(__file__).with_name("assets.txt"))
    judge = "transformers:qwen2.5-vl-7b"
    pixels = PIXELS
    # a cosine distance is up to 2, and ED counts characters beyond the distance that changes a score
    unbounded = ("diversity*", "text/*ED", f"{TOTAL}*")
    scores_blank = False  # the official splitter removes the placeholder of a missing image, a black cell
    has_corrected_rules = True
    takes = "reader"  # only for the task text
    item_values = ("alignment", *TEXT_PARTS, "reasoning", "style")
    needs_all_items = "it scores each prompt with all of its images"
    settings_class = OneIGSettings

    settings: OneIGSettings
    edition: Edition = ENGLISH

    def __init__(self, settings: OneIGSettings | None = None, judge: str = "") -> None:
        super().__init__(settings, judge)
        self.rules, self.tasks = self.settings.rules, self.settings.chosen
        self.images_per_prompt = self.settings.count
        if "diversity" in self.tasks:  # diversity scores every prompt
            self.prompt_count = sum(self.edition.sizes.values())
        if not {"alignment", "text"} & set(self.tasks):
            self.judge = ""
        self.headline = (*self.tasks, *([TOTAL] if self.tasks == TASKS else []))
        if self.rules == "official":
            # these differ where an official program reused another prompt's readings, or stopped
            self.official_headline = tuple(OFFICIAL.get(name, name) for name in self.headline)

    def check(self) -> None:
        from eval_models.encoders.weights import check_names

        check_names(self.settings.weights)
        if self.judge and not self.backend and "alignment" in self.tasks:
            raise UserError(
                f"{self.name}: '{self.judge}' reads text, but alignment needs a judge that answers questions: choose "
                "one, or tasks without alignment (--ds_kwargs \"tasks='text'\")"
            )

    @cached_property
    def measurers(self) -> Mapping[str, Measurer]:
        options = {"weights": dict(self.settings.weights), "batch_size": self.settings.batch_size}
        references = {"csd": str(self.data / "CSD_embed.pt"), "se": str(self.data / "SE_embed.pt")}
        of_tasks = {
            "reasoning": Measurer("llm2clip", options),
            "style": Measurer("csd+se", {**options, "references": references}),
            "diversity": Measurer("dreamsim", options),
            "alignment": JUDGE,
            "text": JUDGE,
        }
        return {task: measurer for task, measurer in of_tasks.items() if task in self.tasks}

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"rules": self.rules, "images_per_prompt": self.images_per_prompt}

    @property
    def details(self) -> Mapping[str, Any]:
        # keep this order: results on disk have it
        return {"rules": self.rules, "tasks": list(self.tasks), "images_per_prompt": self.images_per_prompt}

    @property
    def is_official(self) -> bool:
        plain = self.images_per_prompt == IMAGES_PER_PROMPT and not self.settings.weights
        return plain and self.rules == "official"

    def samples(self) -> Iterator[Sample]:
        """Yields the images of a prompt one after the other; classes, styles, subjects and scenes are
        interleaved."""
        classes = list[list[Prompt]]()
        for of_class in grouped(self._prompts_of_tasks, lambda prompt: prompt.class_item).values():
            of_labels = grouped(of_class, lambda prompt: prompt.label)
            # half of the anime prompts have no label
            classes.append(spread([of_labels.pop("", []), spread(of_labels.values())]))
        for prompt in spread(classes):
            for repetition in range(1, self.images_per_prompt + 1):
                data = {
                    "class_item": prompt.class_item,
                    "id": prompt.id,
                    "repetition": repetition,
                    "label": prompt.label,
                }
                file = f"images/{prompt.class_item}/{prompt.id}_{repetition}.png"
                yield Sample(file, prompt.text, repetition, data)

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Any] | None:
        # the driver imports this module before packages are installed
        from benchmarks.oneig.grids import find_grids

        model, grids = items[0].model, self.settings.grids
        grid = grids.get(model) or grids.get("")
        if grids and not grid:
            raise CellFailure(
                f"the setting grid names {', '.join(grids)}, but not {model}{suggest(model, grids)}"
            )
        return find_grids(source, items, grid, self.images_per_prompt)

    def questions(self, item: Item, image: Picture, answers: Answers) -> Iterator[Question]:
        """Yields one question per task, named after the task, and in alignment several ("alignment/3").

        With official rules a black image gets no questions: the official splitter treats it as padding.
        """
        from imageevalkit.common.images import (
            decode,  # the driver imports this module before packages are installed
        )

        is_official = self.rules == "official"
        if is_official and image.flat and is_black(decode(image.read())):
            return
        prompt = self._prompt(item)
        picture = image._replace(encoding=_JPEG, pixels=PIXELS if is_official else _UPRIGHT)
        texts = {"reasoning": [prompt.answer], "style": [prompt.style], "diversity": []}
        for task in self.tasks:
            if task not in prompt.tasks:
                continue
            if task == "text":
                check_package(self.name)
            if task == "alignment":
                for number, question in prompt.questions.items():
                    words = self.prompts[QUESTION_TEXT].format(question=question)
                    yield self._judged(f"alignment/{number}", picture, words, 128)
            elif task != "text":
                yield measure(task, picture, *texts[task])
            elif self.backend:
                tokens = max_tokens(prompt, self.rules, self.edition.language)
                yield self._judged(task, picture, self.prompts[READING_TEXT], tokens)
            else:
                yield measure(task, image)  # a text reader gets the file unchanged

    def _judged(self, name: str, picture: Picture, words: str, tokens: int) -> Question:
        return Question(
            name, (Message("user", (picture, words)),), _sampling(self.judge, self.official, tokens)
        )

    def parse(self, question: Question, answer: Answer) -> Any:
        """Returns a judge's text unchanged, or an encoder's numbers; for a DreamSim embedding only its
        length.

        A judge's text is always valid: anything but "Yes" counts as no. Raises Unparsed if an encoder's
        record holds no numbers.
        """
        value, task = super().parse(question, answer), question.group
        if self.measurers[task] == JUDGE:
            return value
        try:
            if task == "diversity":
                from eval_models.encoders.dreamsim import read_embedding  # the driver lacks its packages

                embedding = _finite(read_embedding(answer.text or ""))
                if not any(embedding):
                    raise ValueError("zeros have no distance from anything")
                return len(embedding)
            if task == "reasoning":
                return _finite([float(value["official"]), float(value["exact"])])
            return [_finite([float(n) for n in value[name]]) for name in ("csd", "se", "se_exact")]
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise Unparsed(f"the record holds no numbers of an encoder ({type(error).__name__})") from None

    def score(self, item: Item, answers: Answers) -> Score:
        return shown_score(self._prompt(item), answers, self.rules, self.edition.language)

    def metrics(self, scores: Scores) -> dict[str, Metric]:
        return metrics(self._run(scores))

    def notes(self, scores: Scores) -> list[str]:
        other = "corrected" if self.rules == "official" else "official"
        count = self.images_per_prompt
        images = f"{count} images per prompt" if count > 1 else "one image per prompt"
        notes = [f"scored by the {self.rules} rules (the other choice is {other}), {images}"]
        if black := sum(map(is_padding, scores.items)):
            left_out = "image is" if black == 1 else "images are"
            notes.append(f"{black} {left_out} entirely black: left out, as the official splitter does")
        return notes

    def official_files(self, scores: Scores) -> dict[str, str]:
        """The official files. The summary exists only if no item is missing: it cannot mark a missing one."""
        run = self._run(scores)
        files = summary.score_files(run) | summary.analysis_files(run)
        files |= summary.sample_files(run, self.prompts)
        if all(one.score for one in scores.items):
            count, whole = len(run.prompts), len(self._prompts_of_tasks)
            part = "" if count == whole else f"-{count}-of-{whole}-prompts"
            version = f"{self.version}-{self.rules}{part}"
            files |= summary.summary_files(version, {run.model: metrics(run)}, self.edition)
        return files

    def _run(self, scores: Scores) -> Run:
        of_prompts = grouped(scores.items, lambda one: self._prompt(one.item).key)
        items = {key: mine if any(one.attempted for one in mine) else [] for key, mine in of_prompts.items()}
        # the official programs use the order of the file, and the last digit of a mean depends on it
        prompts = [
            ScoredPrompt(prompt, items[key], self.rules, self.edition.language)
            for key, prompt in self._prompts.items()
            if key in items
        ]
        return Run(prompts, self.tasks, self.rules, self.edition, scores.items[0].item.model)

    def _prompt(self, item: Item) -> Prompt:
        return self._prompts[item.data["class_item"], item.data["id"]]

    @cached_property
    def _prompts(self) -> dict[tuple[str, str], Prompt]:
        with self.content_of(self.edition.prompt_file):
            return read_prompts(self, self.edition)

    @property
    def _prompts_of_tasks(self) -> list[Prompt]:
        return [prompt for prompt in self._prompts.values() if not set(self.tasks).isdisjoint(prompt.tasks)]


class OneIGZh(OneIG):
    """The Chinese edition: the same tasks and rules, with 200 additional multilingual prompts."""

    name, title = "oneig-zh", "OneIG-Bench ZH"
    assets = asset_list(Path(__file__).with_name("assets_zh.txt"))
    edition = CHINESE


def _finite(numbers: Sequence[float]) -> Sequence[float]:
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError("no finite numbers")
    return numbers
