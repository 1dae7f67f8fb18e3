"""What one image is worth, for scores.jsonl and the gallery: the scores of a run are its prompts'."""

from __future__ import annotations

from typing import Any

from benchmarks.oneig.alignment import YES, parsed_answer
from benchmarks.oneig.prompt_scores import image_score, style_similarities
from benchmarks.oneig.scored import Language, Prompt, ScoredImage
from benchmarks.oneig.text_metric import compare_all
from imageevalkit.benchmark.contract import Rules


def values_and_detail(
    prompt: Prompt, image: ScoredImage, rules: Rules, language: Language
) -> tuple[dict[str, float], dict[str, Any]]:
    """Numbers by task (``ED``, ``CR``, ``WAC`` of text), and what to read; diversity is no single image's."""
    values: dict[str, float] = {}
    detail: dict[str, Any] = {}
    if image.black and rules == "official":
        return values, {"left out": "entirely black: padding to the official splitter"}
    if image.answers is not None:
        values["alignment"] = image_score(prompt, image, "alignment", rules)
        no = [n for n, answer in image.answers.items() if parsed_answer(answer, rules) != YES]
        detail |= {prompt.questions[n]: image.answers[n] for n in no}
    if image.reading is not None:
        (compared,) = compare_all(prompt.expected_text, [image.reading], rules, language)
        values |= {"ED": compared.distance, "CR": compared.complete, "WAC": compared.ratio}
        detail |= {"expected": prompt.expected_text, "read": image.reading}
    if image.similarity is not None:
        values["reasoning"] = image_score(prompt, image, "reasoning", rules)
    if image.style is not None:
        values["style"] = image_score(prompt, image, "style", rules)
        csd, se = style_similarities(image.style, rules)
        detail |= {"style": prompt.style, "CSD": f"{csd:.4f}", "SE": f"{se:.4f}"}
    return values, detail
