"""OneIG-Bench for the evaluate engine: five tasks, asked of a judge and of image encoders, scored by prompt."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from benchmarks.oneig.answerers import JUDGED, WEIGHTS_OF, answerers, is_official
from benchmarks.oneig.data import read_prompts
from benchmarks.oneig.editions import ENGLISH, Edition, looks_at
from benchmarks.oneig.image_scores import values_and_detail
from benchmarks.oneig.metric import TOTAL, metrics, official_name
from benchmarks.oneig.official import files
from benchmarks.oneig.questions import parsed_reply, questions_about, scored_image, task_of
from benchmarks.oneig.scored import TASKS, Prompt, ScoredImage, ScoredPrompt, Task
from benchmarks.oneig.settings import IMAGES_PER_PROMPT, Settings
from eval_models.encoders.weights import assets_of, missing_files
from eval_models.judge.asked import digest
from eval_models.judge.registry import JUDGE_SETTINGS, choose
from eval_models.ocr.registry import READERS, check_reader
from imageevalkit import judge_prompts
from imageevalkit.asset_checks.check import Needed
from imageevalkit.assets import data_folder
from imageevalkit.benchmark.answerer import Answerer
from imageevalkit.benchmark.contract import RULES, Benchmark, Judged, Score
from imageevalkit.benchmark.question import Answer, Picture, Question, Reply
from imageevalkit.cell.items import Item
from imageevalkit.cell.results import Evaluator, Metric
from imageevalkit.errors import CellFailure, UserError
from imageevalkit.grids import is_black

DEFAULT_JUDGE = "qwen2.5-vl-7b"
VERSION = "oneig-41b4983"  # data, prompts and rules are those of OneIG-Bench/OneIG-Benchmark at this commit
_OFFICIAL_JUDGE = f"transformers:{DEFAULT_JUDGE}"
_SEED = 42  # of the official code and of AISBench, whose judge draws its answers


def configured(given: Mapping[str, Any]) -> Configured:
    """The English edition with the settings ``given``. Raises UserError for a wrong one."""
    return Configured(ENGLISH, Settings.of(given))


class Configured(NamedTuple):
    """See :func:`imageevalkit.benchmark.contract.rules_of`."""

    edition: Edition
    settings: Settings
    of_images_elsewhere: Sequence[str] = ("grid",)

    def missing(self) -> list[str]:
        """Weights of the tasks' encoders that nothing but prefetch gets here, and are not here."""
        names = [name for task in self.settings.tasks for name in WEIGHTS_OF.get(task, ())]
        return missing_files(names, self.settings.encoder_options)

    def evaluator_assets(self) -> list[Needed]:
        """The weights of the tasks' encoders."""
        names = [name for task in self.settings.tasks for name in WEIGHTS_OF.get(task, ())]
        optional = ["csd_clip"] if "csd" in names and "csd" not in self.settings.weights else []
        return assets_of([*names, *optional], self.settings.encoder_options)

    @property
    def uses_encoders(self) -> bool:
        """Whether a task has encoders."""
        return not set(self.settings.tasks) <= set(JUDGED)

    def check_judge(self, judge: str) -> str:
        """The judge or text reader for the tasks that have questions to one; empty when none has.

        Raises:
            UserError: there is no such one, or it is to judge what it cannot.
        """
        tasks = [task for task in JUDGED if task in self.settings.tasks]
        if not tasks:
            return ""
        judge = judge or DEFAULT_JUDGE
        if judge in JUDGE_SETTINGS or ":" in judge:
            return choose(judge).full_name
        if "alignment" in tasks and judge not in READERS:
            return choose(judge).full_name  # which tells of the judges that there are
        reader = check_reader(judge)
        if "alignment" in tasks:
            others = ",".join(task for task in self.settings.tasks if task != "alignment")
            raise UserError(
                f"{self.edition.name}: '{reader}' reads text, but alignment needs a judge that answers questions: "
                "choose "
                f"one, or tasks without alignment (--ds_kwargs \"tasks='{others or 'text'}'\")"
            )
        return reader

    def make(self, judge: str) -> OneIGBenchmark:
        """The benchmark with ``judge``. Raises CellFailure when the official data are not there."""
        return OneIGBenchmark(self.edition, self.settings, judge)


class OneIGBenchmark(Benchmark):
    """One edition, by the rules and for the tasks of ``settings``."""

    version = VERSION
    # a cosine distance is up to 2, and characters are counted beyond what changes a score
    unbounded = ("diversity*", "text/*ED", f"{TOTAL}*")
    scores_blank = False  # the official splitter takes the placeholder of an image, which is black there, out

    def __init__(self, edition: Edition, settings: Settings, judge: str) -> None:
        self.name = edition.name
        self._edition = edition
        self._settings = settings
        self._templates = judge_prompts.load(edition.name)
        self._prompts = {(p.class_item, p.id): p for p in read_prompts(data_folder(edition.name), edition)}
        found = answerers(edition.name, settings, judge, self._templates, _OFFICIAL_JUDGE)
        self._answerers, self._judge, self._judge_name = found.by_task, found.judge, judge
        complete = len(settings.tasks) == len(TASKS)
        self.headline = (*settings.tasks, *([TOTAL] if complete else []))
        if settings.rules == "official":
            # they differ where the official programs have taken another prompt's readings, or stopped
            other = {name: official_name(name) for name in ("text", "reasoning", TOTAL)}
            self.official_headline = tuple(other.get(name, name) for name in self.headline)
        self._black: set[str] = set()
        self._asked: Answerer | None = None
        if "text" in settings.tasks and not importlib.util.find_spec("rapidfuzz"):
            raise CellFailure(
                f"{edition.name}: package rapidfuzz is missing in this environment; bring it up to date with "
                "bash utils/make_env.sh"
            )

    @cached_property
    def evaluator(self) -> Evaluator:
        """Named by the judge, the rules, and a hash of all answerers, the tasks and the number of images."""
        settings = self._settings
        parts = self._parts
        decisive = {
            "answerers": {task: part.id for task, part in parts.items()},
            "rules": settings.rules,
            "images_per_prompt": settings.images_per_prompt,
        }
        label = self._judge.label if self._judge else self._judge_name and parts["text"].id
        return Evaluator(
            id=f"{label or 'encoders'}/{settings.rules}/{digest(decisive)[:8]}",
            official=(
                settings.rules == "official"
                and settings.images_per_prompt == IMAGES_PER_PROMPT
                and not settings.weights
                and all(map(is_official, parts.values()))
            ),
            details={
                "rules": settings.rules,
                "tasks": list(settings.tasks),
                "images_per_prompt": settings.images_per_prompt,
                "answerers": {task: {"id": part.id, **part.details} for task, part in parts.items()},
            },
        )

    @cached_property
    def _parts(self) -> dict[Task, Evaluator]:
        """Who answers for each task. Raises CellFailure for all that miss something, not only for the first."""
        parts, problems = {}, []
        for task, answerer in self._answerers.items():
            try:
                parts[task] = answerer.evaluator
            except CellFailure as error:
                problems.append(str(error))
        if problems:
            raise CellFailure("; ".join(dict.fromkeys(problems)))
        return parts

    def answerer(self, question: Question) -> Evaluator:
        return self._parts[task_of(question.name)]

    @property
    def _sampling(self) -> dict[str, Any] | None:
        """How the judge's replies are drawn; None without one.

        The official code leaves all to the checkpoint: Qwen2.5-VL is greedy in effect, with a repetition penalty of
        1.05; Qwen3-VL, AISBench's judge, draws. A server is told to be greedy; only vLLM knows the penalty.
        """
        if not self._judge:
            return None
        if self._judge.backend == "transformers":
            return {"temperature": None, "seed": None if self._judge.is_official else _SEED}
        penalised = self._judge.backend == "vllm" and DEFAULT_JUDGE in self._judge.label
        return {"temperature": 0.0, "extra": {"repetition_penalty": 1.05} if penalised else {}}

    @property
    def judge_id(self) -> str:
        return self._judge.evaluator.id if self._judge else self.evaluator.id

    def questions(self, item: Item, image: Picture) -> Sequence[Question]:
        """None about a black image under official rules: the official splitter takes it for padding."""
        if image.flat and self._settings.rules == "official" and _is_black(image):
            self._black.add(item.id)
            return []
        prompt = self._prompt(item)
        return questions_about(
            item.id, prompt, image, self._edition, self._settings, self._templates, self._sampling
        )

    def has_answered(self, answerers: Collection[str]) -> None:
        if self._judge and self._judge.evaluator.id in answerers:
            self._judge.has_answered()

    def holdup(self) -> str:
        if self._asked and self._asked is not self._judge:
            return f"{self._asked.evaluator.id.partition('/')[0]} loads and measures"
        return self._judge.holdup() if self._judge else ""

    def ask(self, questions: Sequence[Question], workers: int) -> Iterator[Answer]:
        """Each answerer's questions at once, one answerer after another."""
        for answerer in dict.fromkeys(self._answerers.values()):
            mine = [q for q in questions if self._answerers[task_of(q.name)] is answerer]
            if mine:
                self._asked = answerer
                yield from answerer.ask(mine, workers)

    def parse(self, question: Question, reply: Reply) -> Any:
        """See :func:`benchmarks.oneig.questions.parsed_reply`."""
        return parsed_reply(question.name, reply)

    def score(self, item: Item, parsed: Mapping[str, Any], replies: Mapping[str, Reply]) -> Score:
        """What one image is worth in each task that scores single images, and what was said of it."""
        prompt = self._prompt(item)
        image = scored_image(parsed, replies, prompt, path=item.path, black=item.id in self._black)
        values, detail = values_and_detail(prompt, image, self._settings.rules, self._edition.language)
        return Score(
            item.id,
            values,
            {"class_item": prompt.class_item, **({"label": prompt.label} if prompt.label else {})},
            detail,
        )

    def aggregate(self, judged: Sequence[Judged]) -> dict[str, Metric]:
        """The metrics of :func:`benchmarks.oneig.metric.metrics`."""
        settings = self._settings
        return metrics(self._scored(judged), settings.tasks, settings.rules, self._edition.language)

    def notes(self, judged: Sequence[Judged]) -> list[str]:
        """The rules, and what they took out."""
        rules, per_prompt = self._settings.rules, self._settings.images_per_prompt
        (other,) = set(RULES) - {rules}
        images = f"{per_prompt} images per prompt" if per_prompt > 1 else "one image per prompt"
        said = [f"scored by the {rules} rules (the other choice is {other}), {images}"]
        if self._black:
            left_out = "image is" if len(self._black) == 1 else "images are"
            said.append(
                f"{len(self._black)} {left_out} entirely black: left out, as the official splitter does"
            )
        return said

    def official_files(self, judged: Sequence[Judged]) -> dict[str, str]:
        """The official CSV files, AISBench's details of each task and, where none is missing, its summary."""
        prompts, settings = self._scored(judged), self._settings
        of_tasks = [p for p in self._prompts.values() if any(looks_at(task, p) for task in settings.tasks)]
        part = "" if len(prompts) == len(of_tasks) else f"-{len(prompts)}-of-{len(of_tasks)}-prompts"
        return files(
            prompts,
            settings,
            self._edition,
            judged[0].item.model,
            self._templates,
            f"{VERSION}-{settings.rules}{part}",
            self.aggregate(judged),
            complete=all(one.score for one in judged),
        )

    def _prompt(self, item: Item) -> Prompt:
        key = item.data["class_item"], item.data["id"]
        if key not in self._prompts:
            raise CellFailure(f"benchmark {self.name} has no prompt {'/'.join(key)}")
        return self._prompts[key]

    def _scored(self, judged: Sequence[Judged]) -> list[ScoredPrompt]:
        images: dict[tuple[str, str], list[ScoredImage]] = {}
        attempted = set[tuple[str, str]]()
        for one in sorted(judged, key=lambda one: one.item.data["repetition"]):
            prompt = self._prompt(one.item)
            image = scored_image(
                one.parsed, one.replies, prompt, path=one.image, black=one.item.id in self._black
            )
            key = prompt.class_item, prompt.id
            images.setdefault(key, []).append(image)
            if one.attempted:
                attempted.add(key)
        return [
            ScoredPrompt(self._prompts[key], found if key in attempted else ())
            for key, found in images.items()
        ]


def _is_black(picture: Picture) -> bool:
    # the driver reads this module before any package is there
    from imageevalkit.images import decode

    return is_black(decode(picture.path.read_bytes()))
