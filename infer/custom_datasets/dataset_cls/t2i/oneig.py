"""OneIG-Bench: 1,120 English and 1,320 Chinese prompts of five and six classes, several images of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.oneig.data import read_prompts
from benchmarks.oneig.editions import CHINESE, ENGLISH, Edition, looks_at
from benchmarks.oneig.layout import find_images
from benchmarks.oneig.scored import Prompt
from benchmarks.oneig.settings import Settings
from custom_datasets.interleave import spread
from imageevalkit.adoption.places import Place
from imageevalkit.assets import data_folder
from imageevalkit.benchmark_settings import settings_of
from imageevalkit.cell.items import MODEL_NAME_MARK, Item


class OneIGBench:
    """The prompts that the chosen tasks look at, ``images_per_prompt`` images of each.

    The images of a prompt follow each other, so that any first N of them are of N / images_per_prompt prompts; these
    hold each class in its share, and within a class each style, subject or scene.
    """

    edition: Edition = ENGLISH

    def __init__(self) -> None:
        self.dataset_name = self.edition.name
        self.dataset_task = "t2i"
        self._settings = Settings.of(settings_of(self.dataset_name))
        self.data = self._entries()

    def find_images(self, source: Path, items: Sequence[Item]) -> Mapping[str, Place]:
        """See :func:`benchmarks.oneig.layout.find_images`."""
        settings, model = self._settings, items[0].model
        return find_images(source, items, settings.grid_of(model), model, settings.images_per_prompt)

    def _entries(self) -> list[dict[str, Any]]:
        prompts = [
            prompt
            for prompt in read_prompts(data_folder(self.dataset_name), self.edition)
            if any(looks_at(task, prompt) for task in self._settings.tasks)
        ]
        classes = ([p for p in prompts if p.class_item == name] for name in self.edition.sizes)
        return [
            self._entry(prompt, repetition)
            for prompt in spread(_spread_labels(group) for group in classes)
            for repetition in range(1, self._settings.images_per_prompt + 1)
        ]

    def _entry(self, prompt: Prompt, repetition: int) -> dict[str, Any]:
        folder = f"{MODEL_NAME_MARK}/{self.dataset_name}/images/{prompt.class_item}"
        return {
            "prompt": prompt.text,
            "seed": repetition,
            "image_save_path": f"{folder}/{prompt.id}_{repetition}.png",
            "class_item": prompt.class_item,
            "id": prompt.id,
            "repetition": repetition,
            "label": prompt.label,
        }


class OneIGZhBench(OneIGBench):
    """The Chinese edition."""

    edition = CHINESE


def _spread_labels(prompts: Iterable[Prompt]) -> list[Prompt]:
    """``prompts`` of one class; those without a label, half of the anime prompts, alternate with those with one."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.label, []).append(prompt)
    without = groups.pop("", [])
    return spread([without, spread(groups.values())])
