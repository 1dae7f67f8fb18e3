"""The settings of OneIG-Bench (``--ds_kwargs``, ``DS_KWARGS_MAP``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from benchmarks.oneig.scored import TASKS, Task
from eval_models.encoders.interface import EncoderOptions
from eval_models.encoders.weights import check_names
from imageevalkit.benchmark.contract import Rules, read_rules
from imageevalkit.errors import CellFailure, UserError, suggest
from imageevalkit.grids import Grid

IMAGES_PER_PROMPT = 4
"""What the official README recommends."""


@dataclass(frozen=True)
class Settings:
    """``tasks`` are in the official order. ``rules`` "official" gives the official numbers, quirks included,
    "corrected" those without (README, "OneIG-Bench"). ``grid`` is how images made elsewhere are pasted together: one
    for all models, or one by model; it says ``images_per_prompt`` too. ``weights`` and ``batch_size`` are those of
    the encoders.
    """

    tasks: Sequence[Task] = TASKS
    rules: Rules = "official"
    images_per_prompt: int = IMAGES_PER_PROMPT
    grid: Grid | Mapping[str, Grid] | None = None
    weights: Mapping[str, str] = field(default_factory=dict)
    batch_size: int = 32

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """The settings in a user's words. Raises UserError: an unknown name, or a value of another kind."""
        names = [f.name for f in fields(cls)]
        for name in given:
            if name not in names:
                raise UserError(
                    f"OneIG has no setting '{name}'{suggest(name, names)}; it takes {', '.join(names)}"
                )
        values: dict[str, Any] = {name: _READ[name](name, value) for name, value in given.items()}
        if "grid" in values:
            cells = _cells(values["grid"])
            if values.setdefault("images_per_prompt", cells) != cells:
                raise UserError(
                    f"OneIG's grid has {cells} cells, but images_per_prompt is {values['images_per_prompt']}: leave "
                    "that out"
                )
        settings = cls(**values)
        if settings.images_per_prompt == 1 and "diversity" in settings.tasks:
            others = ",".join(task for task in settings.tasks if task != "diversity")
            raise UserError(
                "OneIG's diversity compares the images of a prompt, but images_per_prompt is 1: choose other tasks "
                f"(tasks='{others or 'alignment'}')"
            )
        return settings

    @property
    def encoder_options(self) -> EncoderOptions:
        """What the encoders are told."""
        return EncoderOptions(self.weights, batch_size=self.batch_size)

    def grid_of(self, model: str) -> Grid | None:
        """How the images of ``model`` that were made elsewhere are pasted together; None: nobody said.

        Raises:
            CellFailure: it was said of other models only.
        """
        if not isinstance(self.grid, Mapping):
            return self.grid
        if model not in self.grid:
            raise CellFailure(
                f"the setting grid names {', '.join(self.grid)}, but not {model}{suggest(model, self.grid)}"
            )
        return self.grid[model]


def _tasks(name: str, value: Any) -> tuple[Task, ...]:
    words = value.replace(",", " ").replace(";", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list) or not words:
        raise UserError(
            f'OneIG\'s {name} are {value!r}: name some of {", ".join(TASKS)} (tasks="text,style")'
        )
    for word in words:
        if word not in TASKS:
            raise UserError(
                f"OneIG has no task {word!r}{suggest(str(word), TASKS)}; it has {', '.join(TASKS)}"
            )
    return tuple(task for task in TASKS if task in words)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"OneIG's {name} is {value!r}: use a whole number of at least 1")
    return value


def _grid(name: str, value: Any) -> Grid | dict[str, Grid]:
    if isinstance(value, dict) and value:
        return {str(model): Grid.parse(str(text)) for model, text in value.items()}
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return Grid.parse(str(value))


def _cells(grid: Grid | Mapping[str, Grid]) -> int:
    """How many images of a prompt ``grid`` holds; those of several models hold as many, or they do not compare."""
    cells = {one.cells for one in grid.values()} if isinstance(grid, Mapping) else {grid.cells}
    if len(cells) != 1:
        raise UserError(
            "OneIG's grid has another number of cells for one model than for another: run them apart"
        )
    return cells.pop()


def _texts(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) and text for text in value.values()):
        raise UserError(f'OneIG\'s {name} are {value!r}: use {{"csd": "/path/checkpoint.pth"}}')
    check_names(EncoderOptions(value))
    return value


_READ = {
    "tasks": _tasks,
    "rules": lambda name, value: read_rules("OneIG", value),
    "images_per_prompt": _count,
    "grid": _grid,
    "weights": _texts,
    "batch_size": _count,
}
