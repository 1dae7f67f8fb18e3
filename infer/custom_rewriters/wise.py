"""Rewrites a prompt that needs knowledge into a prompt that describes the image, as in WISE (arXiv
2503.07265, 4.3).

The judge sees the new prompt, as in the paper. Scores are still not comparable with the paper's: the authors
publish their instruction only as figure 7, so the instruction here is our own. The setting ``instruction``
replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imageevalkit.benchmark.question import Message
from imageevalkit.common.errors import CellFailure, UserError
from imageevalkit.extras.rewrite.contract import Rewriter, RewriterSettings
from imageevalkit.store.cell import Cell
from imageevalkit.store.items import Item

_INSTRUCTION = """\
You turn a puzzling prompt for an image into a plain one. You are given the prompt and an explanation of what the image
must show. Say directly what is to be seen, with what matters of the explanation, so that somebody who reads your prompt
alone, and knows nothing, can draw it. Add nothing that neither of the two says or implies. Answer with the new prompt
and nothing else.

Prompt: The instrument that Sherlock Holmes plays.
Explanation: The detective of the stories plays the violin.
Output: A violin.

Prompt: A glass of water that was left outdoors on a winter night in Siberia.
Explanation: It is far below freezing there, so the water is frozen and the glass may have burst.
Output: A glass full of solid, cloudy ice, its wall cracked, standing in snow at night.
"""


@dataclass(frozen=True)
class WiseSettings(RewriterSettings):
    """``instruction`` is the path of a text file that replaces our system message."""

    instruction: str = ""


class Wise(Rewriter):
    """The rewriter for benchmarks whose items have an explanation: all editions of WISE."""

    name = "wise"
    model = "gpt-4o-2024-05-13"  # the paper's model
    judged = True
    settings_class = WiseSettings
    settings: WiseSettings

    @cached_property
    def words(self) -> Mapping[str, str]:
        file = self.settings.instruction
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8").strip() if file else _INSTRUCTION
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"instruction={file} cannot be read: {error}") from None
        if not text:
            raise UserError(f"instruction={file} is empty")
        return {"instruction": text}

    def messages(self, item: Item, text: str, raw: Cell, task: str) -> Sequence[Message]:
        explanation = item.data.get("explanation")
        if not isinstance(explanation, str):
            raise CellFailure(
                f"--prompt_rewriter wise takes prompts with an explanation, and {raw.benchmark} has none"
            )
        asked = f"Prompt: {text}\nExplanation: {explanation}\nOutput:"
        return [Message("system", (self.words["instruction"],)), Message("user", (asked,))]
