"""Qwen-Image with the words that its authors' examples add to the user's: read from their repository, never run."""

from __future__ import annotations

from typing import Any

from custom_models.authors_examples import set_in_readme
from custom_models.model_utils.diffusers_t2i import DiffusersT2I


class QwenImage(DiffusersT2I):
    """The first version, whose example ends each prompt with words on quality in the prompt's language.

    Args:
        prompt_suffix: added to every prompt as it is; None: the authors' words.

    Raises:
        ModelUnusable: it does not load, or the authors' words are wanted and their repository is not there.
    """

    def __init__(self, model_path: str, *, prompt_suffix: str | None = None, **settings: Any) -> None:
        # before the weights are read: what is missing should not cost minutes
        self._authors = None if prompt_suffix is not None else _said("Qwen/Qwen-Image", "positive_magic")
        super().__init__(model_path, prompt_suffix=prompt_suffix or "", **settings)

    def _prompt(self, prompt: str) -> str:
        if self._authors is None:
            return super()._prompt(prompt)
        return prompt + str(self._authors["zh" if _is_chinese(prompt) else "en"])


class QwenImage2512(DiffusersT2I):
    """The version of December 2025, whose example has a negative prompt.

    Args:
        negative_prompt: what guidance leads away from; None: the authors' own, a blank: nothing.

    Raises:
        ModelUnusable: it does not load, or the authors' words are wanted and their repository is not there.
    """

    def __init__(self, model_path: str, *, negative_prompt: str | None = None, **settings: Any) -> None:
        if negative_prompt is None:
            negative_prompt = str(_said("Qwen/Qwen-Image-2512", "negative_prompt"))
        super().__init__(model_path, negative_prompt=negative_prompt, **settings)


def _said(weights: str, variable: str) -> Any:
    return set_in_readme("qwen-image", "README.md", weights, variable)


def _is_chinese(prompt: str) -> bool:
    """As the authors' programs decide (get_caption_language of src/examples/tools/prompt_utils.py)."""
    return any("\u4e00" <= character <= "\u9fff" for character in prompt)
