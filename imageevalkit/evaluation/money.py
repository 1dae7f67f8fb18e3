"""What asking a judge would take, for a forecast."""

from __future__ import annotations

from collections.abc import Sequence

from imageevalkit.benchmark.question import Question
from imageevalkit.judges.choice import JudgeOptions
from imageevalkit.judges.settings import ApiSettings
from imageevalkit.money import dollars
from imageevalkit.registry import choose_judge

# What a judge's text costs is known well enough, what an image costs is up to the provider: 1024 px are about a
# thousand tokens for Qwen-VL (spec of GenEval 2, section 9) and for GPT-4o.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_IMAGE = 1000
# A verdict in a few words; protocols allow for many more. A judge that thinks before it answers writes more.
_TOKENS_PER_REPLY = 50


def effort(judge: str, questions: Sequence[Question]) -> str:
    """Tokens and money that ``questions`` take if each is asked once, in words.

    A text of n characters counts as n / 4 tokens, an image as 1000, a reply as 50 or what it may have at most; the
    tokens told are those sent. Money is told of judges behind an API only. ``judge`` is its full name, its options
    are those of this process's environment.

    Raises:
        UserError: the judge's settings are malformed.
    """
    choice = choose_judge(judge)
    sent = round(sum(map(_tokens, questions)))
    written = sum(min(question.sampling.max_tokens, _TOKENS_PER_REPLY) for question in questions)
    said = f"about {sent / 1e6:.2f} million tokens"
    if choice.setting.backend != "openai":
        return said
    kwargs = {**choice.setting.kwargs, **JudgeOptions.from_environment().kwargs}
    price = ApiSettings(**kwargs).price_of(choice.setting.model_path)
    cost = price.cost({"prompt_tokens": sent, "completion_tokens": written}) if price else None
    if price is None or cost is None:
        return f"{said}, price unknown"
    return f"{said}, about {dollars(cost)} at {price.basis} (up to {_TOKENS_PER_REPLY} tokens a reply)"


def _tokens(question: Question) -> float:
    return len(question.text) / _CHARACTERS_PER_TOKEN + _TOKENS_PER_IMAGE * len(question.pictures)
