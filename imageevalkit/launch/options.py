"""The command line over the configuration: what this run shall do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imageevalkit.cell import Cell
from imageevalkit.errors import UserError, suggest
from imageevalkit.launch import nvidia_smi
from imageevalkit.launch.config import (
    Config,
    check_name,
    is_boolean,
    parse_amount,
    parse_boolean,
    parse_count,
    split_names,
)
from imageevalkit.launch.kwargs import parse_kwargs, parse_kwargses
from imageevalkit.launch.rewriters import ConfiguredRewriter, configured_rewriter
from imageevalkit.registry import without_alias

T = TypeVar("T")

_MISSING_ITEMS = ("withhold", "official")


class Option(NamedTuple):
    """``value`` names what follows it in the help; a flag has none."""

    value: str
    help: str


OPTIONS: dict[str, Option] = {
    "--model_names": Option('"a;b"', "models to evaluate"),
    "--ds_names": Option('"x;y"', "benchmarks to evaluate them on"),
    "--custom_model_kwargses": Option('"p=1,q=[2];"', "settings per model; a set may be empty"),
    "--use_api": Option("true|false", "generate through an OpenAI-compatible API (API_KEY, BASE_URL)"),
    "--num_workers": Option("N", "API requests in flight at most, for each endpoint and key"),
    "--requests_per_minute": Option(
        "N", "API requests started per minute at most, for each endpoint and key"
    ),
    "--max_cost": Option("USD", "stop before the API images of this run cost more"),
    "--retry_refused": Option("", "send prompts again that an API refused"),
    "--parallel": Option("true|false", "run jobs side by side within GPUs and cores"),
    "--replicas": Option("N", "copies of a local model side by side at most"),
    "--prompt_rewriter": Option(
        "dtm|wise", "have a language model rewrite the prompts before images are made"
    ),
    "--rewriter_kwargs": Option('"p=1,q=2"', "settings of the prompt rewriter, over REWRITER_KWARGS_MAP"),
    "--infer": Option("true|false", "make images"),
    "--eval": Option("true|false", "compute scores"),
    "--images": Option("DIR", "score images made elsewhere, in the official layout, in place of making them"),
    "--judges": Option('"x=ppocr"', "evaluator per benchmark, over JUDGE_MAP"),
    "--judge_kwargs": Option('"p=1,q=2"', "settings of the judges of this run, over JUDGE_KWARGS_MAP"),
    "--ds_kwargs": Option('"p=1,q=2"', "settings of the benchmarks of this run, over DS_KWARGS_MAP"),
    "--rescore": Option("", "score what the judges said before, ask them nothing"),
    "--retry_unparsed": Option("", "ask again where a judge's reply held no score"),
    "--missing_items": Option("withhold|official", "what an incomplete cell's headline score is"),
    "--relations": Option(
        '"x=a,b;y=c/5,d/5"', "how scores of an item relate, by benchmark; c/5: from 0 to 5"
    ),
    "--relations_kwargs": Option('"p=1,q=2"', "settings of the relations of this run"),
    "--limit": Option("N", "only the first N items of each benchmark, for trying"),
    "--overwrite": Option("", "replace images that were made with other settings"),
    "--dry_run": Option("", "show the plan: jobs, environments, images to make; start nothing"),
    "--list": Option("", "show the models and benchmarks there are"),
    "--quickstart": Option("", "the embedded benchmark on two reference models: no GPU, no key, no download"),
    "--help": Option("", "this text"),
}

QUICKSTART_MODELS = ["reference-typeset", "reference-noise"]
QUICKSTART_BENCHMARKS = ["quicktext"]


@dataclass
class Options:
    """What a run shall do; names are checked for existence by the planner."""

    models: list[str] = field(default_factory=list)
    model_kwargs: list[dict[str, Any]] = field(default_factory=list)
    """One dict per model."""
    benchmarks: list[str] = field(default_factory=list)
    use_api: bool = False
    num_workers: int = 4
    requests_per_minute: float | None = None
    max_cost: float | None = None
    """USD."""
    retry_refused: bool = False
    parallel: bool = False
    replicas: int | None = None
    """Most copies of a local model side by side; None: as many as GPUs allow, one on the CPU."""
    gpu_min_free_memory: str = nvidia_smi.DEFAULT
    share_gpus: bool = False
    infer: bool = True
    evaluate: bool = True
    rewriter: ConfiguredRewriter | None = None
    images: Path | None = None
    """Images made elsewhere, to score in place of generation."""
    blank_on_error: bool = False
    missing_items: str = "withhold"
    judges: dict[str, str] = field(default_factory=dict)
    judge_kwargs: dict[str, Any] = field(default_factory=dict)
    ds_kwargs: dict[str, Any] = field(default_factory=dict)
    asks_judges: bool = True
    retry_unparsed: bool = False
    relations: dict[str, list[str]] = field(default_factory=dict)
    """The metrics to relate, by benchmark."""
    relations_kwargs: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    overwrite: bool = False
    dry_run: bool = False

    def cell(self, model: str, benchmark: str) -> Cell:
        """That of this run: results of rewritten prompts have the rewriter in their model's name."""
        return Cell(f"{model}+{self.rewriter.id}" if self.rewriter else model, benchmark)

    @property
    def rewrites(self) -> bool:
        """Whether prompts are rewritten in this run: before images are made, or where nothing else is asked for."""
        return self.rewriter is not None and (self.infer or not self.evaluate)


def parse_words(
    argv: Sequence[str], options: Mapping[str, Option] = OPTIONS, program: str = "bash eval.sh"
) -> dict[str, str]:
    """``--name value``, ``--name=value`` and flags, by name; the last of repeated options wins.

    Raises:
        UserError: unknown option or missing value.
    """
    given: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = {"-h": "--help"}.get(name, name).replace("-", "_")
        name = "--" + name.lstrip("_") if name.startswith("__") else word
        if name not in options:
            what = "option" if word.startswith("-") else "argument"
            raise UserError(f"unknown {what} '{word}'{suggest(name, options)}; see {program} --help")
        if equals:
            given[name] = value
        elif not options[name].value:
            given[name] = words.pop(0) if words and is_boolean(words[0]) else "true"
        elif not words or words[0].startswith("--"):
            raise UserError(f"{name} needs a value: {name} {options[name].value}")
        else:
            given[name] = words.pop(0)
    return given


def options_over(given: dict[str, str], config: Config) -> Options:
    """Options over configuration. Raises UserError: a value is not of its kind."""
    if is_set(given, "--quickstart"):
        for option in ("--model_names", "--ds_names", "--custom_model_kwargses"):
            if option in given:
                raise UserError(f"--quickstart chooses models and benchmarks itself: leave out {option}")
        models, benchmarks, kwargses = QUICKSTART_MODELS, QUICKSTART_BENCHMARKS, ""
        given = {"--infer": "true", "--eval": "true", "--use_api": "false", "--prompt_rewriter": "", **given}
    else:
        models = _names(given, "--model_names", config, "MODEL_NAMES")
        benchmarks = _names(given, "--ds_names", config, "DS_NAMES")
        kwargses = given.get(
            "--custom_model_kwargses", ";".join(config.arrays.get("CUSTOM_MODEL_KWARGSES", []))
        )
    source = "" if "--custom_model_kwargses" in given else " in config.sh"
    unique = merge(models, parse_kwargses(kwargses, len(models), source) if models else [])
    return Options(
        models=list(unique),
        model_kwargs=list(unique.values()),
        benchmarks=list(dict.fromkeys(map(without_alias, benchmarks))),
        use_api=_value(given, "--use_api", config, "USE_API", parse_boolean, False),
        num_workers=_value(given, "--num_workers", config, "NUM_WORKERS", parse_count, 4),
        requests_per_minute=_value(
            given, "--requests_per_minute", config, "REQUESTS_PER_MINUTE", _parse_bound, None
        ),
        max_cost=_value(given, "--max_cost", config, "MAX_COST", _parse_bound, None),
        retry_refused=is_set(given, "--retry_refused"),
        parallel=_value(given, "--parallel", config, "PARALLEL", parse_boolean, False),
        replicas=_value(given, "--replicas", config, "REPLICAS", parse_count, None),
        gpu_min_free_memory=config.scalars.get("GPU_MIN_FREE_MEMORY", "").strip() or nvidia_smi.DEFAULT,
        share_gpus=_value({}, "", config, "SHARE_GPUS", parse_boolean, False),
        infer=_value(given, "--infer", config, "ENABLE_INFER", parse_boolean, True),
        evaluate=_value(given, "--eval", config, "ENABLE_EVAL", parse_boolean, True),
        rewriter=_rewriter(given, config),
        images=_images(given, kwargses),
        blank_on_error=_value({}, "", config, "GENERATE_BLANK_IMAGE_ON_ERROR", parse_boolean, False),
        missing_items=given.get("--missing_items") or config.scalars.get("MISSING_ITEMS") or "withhold",
        judges={
            without_alias(name): judge
            for name, judge in (
                config.maps.get("JUDGE_MAP", {}) | parse_judges(given.get("--judges", ""))
            ).items()
        },
        judge_kwargs=parse_kwargs(given.get("--judge_kwargs", ""), "--judge_kwargs"),
        ds_kwargs=parse_kwargs(given.get("--ds_kwargs", ""), "--ds_kwargs"),
        asks_judges=not is_set(given, "--rescore"),
        retry_unparsed=is_set(given, "--retry_unparsed"),
        relations={
            without_alias(name): metrics
            for name, metrics in parse_relations(given.get("--relations", "")).items()
        },
        relations_kwargs=parse_kwargs(given.get("--relations_kwargs", ""), "--relations_kwargs"),
        limit=_value(given, "--limit", config, "", parse_count, None),
        overwrite=is_set(given, "--overwrite"),
        dry_run=is_set(given, "--dry_run"),
    )


def resolve(given: dict[str, str], config: Config) -> Options:
    """What a run shall do. Raises UserError: like :func:`options_over`, or nothing is left to do."""
    options = options_over(given, config)
    for names, what, option, variable in (
        (options.models, "models", "--model_names", "MODEL_NAMES"),
        (options.benchmarks, "benchmarks", "--ds_names", "DS_NAMES"),
    ):
        if not names:
            where = f"{option} is empty" if option in given else f"no {what} given"
            raise UserError(
                f"{where}: use {option} {OPTIONS[option].value} or {variable} in config.sh "
                "(bash eval.sh --list shows the names; bash eval.sh --quickstart needs none)"
            )
    if options.missing_items not in _MISSING_ITEMS:
        raise UserError(
            f"--missing_items is '{options.missing_items}': use withhold or official"
            f"{suggest(options.missing_items, _MISSING_ITEMS)}"
        )
    for name in options.relations:
        if name not in options.benchmarks:
            near = suggest(name, options.benchmarks)
            raise UserError(f"--relations names '{name}', which is no benchmark of this run{near}")
    nvidia_smi.MinFreeMemory.parse(options.gpu_min_free_memory, "GPU_MIN_FREE_MEMORY in config.sh")
    if options.retry_unparsed and not options.asks_judges:
        raise UserError("--rescore asks the judges nothing, --retry_unparsed asks them again: leave one out")
    if not options.asks_judges and not options.evaluate:
        raise UserError("--rescore computes scores, but --eval is false: leave one out")
    if not options.infer and not options.evaluate and options.rewriter is None:
        raise UserError("nothing to do: both --infer and --eval are false")
    return options


def _images(given: dict[str, str], kwargses: str) -> Path | None:
    if "--images" not in given:
        return None
    if not given["--images"].strip():
        raise UserError("--images is empty: name the folder of the images")
    if kwargses.strip(";, ") and "--custom_model_kwargses" in given:
        raise UserError("--images makes no images: leave out --custom_model_kwargses")
    return Path(given["--images"])


def _rewriter(given: dict[str, str], config: Config) -> ConfiguredRewriter | None:
    if "--images" in given:
        if given.get("--prompt_rewriter", "").strip():
            raise UserError("--images makes no images: leave out --prompt_rewriter")
        return None
    name = given.get("--prompt_rewriter", config.scalars.get("PROMPT_REWRITER", "")).strip()
    kwargs = parse_kwargs(given.get("--rewriter_kwargs", ""), "--rewriter_kwargs")
    if kwargs and not name:
        raise UserError("--rewriter_kwargs is given, but no --prompt_rewriter")
    return configured_rewriter(config, name, kwargs) if name else None


def _names(given: dict[str, str], option: str, config: Config, variable: str) -> list[str]:
    names = split_names(given[option]) if option in given else config.names(variable)
    return [check_name(name) for name in names]


def merge(models: list[str], sets: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The kwargs by model. Raises UserError where one is named twice with different ones."""
    unique: dict[str, dict[str, Any]] = {}
    for model, kwargs in zip(models, sets, strict=True):
        if unique.setdefault(model, kwargs) != kwargs:
            raise UserError(
                f"model '{model}' is named twice with different custom_model_kwargses: their images would "
                "overwrite each other; register the second under its own name"
            )
    return unique


def parse_judges(text: str) -> dict[str, str]:
    """The judges by benchmark in ``"longtext=ppocr;wise=openai:gpt-4o"``. Raises UserError."""
    judges: dict[str, str] = {}
    for pair in split_names(text):
        benchmark, equals, judge = (word.strip() for word in pair.partition("="))
        if not (benchmark and equals and judge):
            raise UserError(f"--judges: '{pair}' is no benchmark=judge; use --judges \"longtext=ppocr\"")
        if judges.setdefault(benchmark, judge) != judge:
            raise UserError(
                f"--judges names two judges for {benchmark}: run the command once for each, both results are kept"
            )
    return judges


def parse_relations(text: str) -> dict[str, list[str]]:
    """The metrics by benchmark in ``"wise=consistency/2,realism/2;mine=a,b"``. Raises UserError."""
    found: dict[str, list[str]] = {}
    for part in split_names(text):
        benchmark, _, words = (word.strip() for word in part.partition("="))
        metrics = list(dict.fromkeys(filter(None, (word.strip() for word in words.split(",")))))
        if not benchmark or len(metrics) < 2:
            raise UserError(
                f"--relations: '{part}' names no two metrics of a benchmark; use --relations "
                '"wise=consistency/2,realism/2" (c/2: a score from 0 to 2; c/1:5: one from 1 to 5)'
            )
        if found.setdefault(benchmark, metrics) != metrics:
            raise UserError(f"--relations names {benchmark} twice: give all its metrics at once")
    return found


def _parse_bound(text: str, what: str) -> float | None:
    """An amount; none where the text is empty, which takes back that of config.sh."""
    return parse_amount(text, what) if text.strip() else None


def _value(
    given: Mapping[str, str],
    option: str,
    config: Config,
    variable: str,
    parse: Callable[[str, str], T],
    default: T,
) -> T:
    """What an option, else a variable of config.sh, says. Raises UserError like ``parse``."""
    if option in given:
        return parse(given[option], option)
    text = config.scalars.get(variable, "")
    return parse(text, f"{variable} in config.sh") if text.strip() else default


def is_set(given: Mapping[str, str], option: str) -> bool:
    """Whether a flag is given, and not as false. Raises UserError: it is neither true nor false."""
    return option in given and parse_boolean(given[option], option)


def help_text() -> str:
    """What ``--help`` prints."""
    return "\n".join(
        [
            "Usage: bash eval.sh [options]",
            "",
            "Generates with every model, scores with every benchmark, leaves one result per model × benchmark",
            "in output/. Defaults come from config.sh; see README.md.",
            "",
            *rows_of(OPTIONS),
            "",
            "Exit status: 0 every cell complete, 3 a cell is incomplete, 1 a cell failed, 2 nothing was started,",
            "130 interrupted, 143 terminated.",
        ]
    )


def rows_of(options: Mapping[str, Option]) -> list[str]:
    """A line of help for each of ``options``."""
    return [f"  {name + ' ' + option.value:<42} {option.help}" for name, option in options.items()]
