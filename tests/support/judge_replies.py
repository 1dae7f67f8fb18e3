"""Replies of a test judge to the questions of any benchmark: verdicts, grades, readings and first-token probabilities.

The question and its images alone decide the reply.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from typing import Any

from tests.support.image_server import Received

MALFORMED = "I would rather not say what I think of this image."
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_RATINGS = ("excellent", "good", "medium", "bad", "terr", "ter")
_LISTED = 0.99  # of the probability; the rest is outside the listed tokens


# what questions hold where they say how to answer: the names of grades, lists of questions and of test points
_GRADE = re.compile(r"^\W*([A-Z][^\n:]*): ?A number from", re.MULTILINE)
_YES_OR_NO = re.compile(r"^Questions:\n(.+?)\n\n", re.MULTILINE | re.DOTALL)
_CRITERION = re.compile(r"'\w*q\d+': ")
_STATEMENT = re.compile(r"^(\d+)\. .", re.MULTILINE)
_CHECKLIST = re.compile(r'^Prompt: ".*"\nQuestion: ".*"$', re.MULTILINE | re.DOTALL)
_EXAM = re.compile(r"^## Scoring Points\n(\[.*\])$", re.MULTILINE)
_POINTS = re.compile(r"<checkpoint>(\[.*?\])</checkpoint>", re.DOTALL)
_NAMED_SCORE = re.compile(r'"(\w+_score)":')
_READ = ("a", "the", "of", "and", "new", "day", "的", "是", "一", "人", "大")


def _number(*key: object) -> float:
    """A number in [0, 1) that ``key`` decides."""
    digest = hashlib.sha256("|".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def draw(request: Received, *salt: object) -> float:
    """A number in [0, 1) that the words, the images and ``salt`` decide."""
    return _number(request.item, salt)


def verdict(request: Received) -> str:
    """Returns the verdict in the form that the question requires; else yes or no."""
    prompt = request.prompt
    if _CHECKLIST.search(prompt):
        return "yes" if draw(request, "verdict") < 0.6 else "no"
    if exam := _EXAM.search(prompt):
        return _exam(request, len(ast.literal_eval(exam[1])))
    if points := _POINTS.search(prompt):
        return _points(request, len(ast.literal_eval(points[1])))
    if prompt.startswith("Statements:"):
        statements = _STATEMENT.findall(prompt)
        return json.dumps({n: {"result": draw(request, n) < 0.9, "reason": "So."} for n in statements})
    if "Expectation checklist:" in prompt:
        return json.dumps({"correct": int(2 * draw(request)), "reason": "It looks so."})
    if "**Final Score" in prompt:
        grade = int(2 * draw(request)) if "**Final Score**:" in prompt else 1 + int(5 * draw(request))
        return f"It looks so.\n\n**Final Score:** **{grade}**"
    if "Grade it 1-10." in prompt:
        return json.dumps({"score": 1 + int(10 * draw(request)), "reason": "It looks so."})
    if '"score": <score>' in prompt:
        return json.dumps({"score": int(11 * draw(request)), "reasoning": "It looks so."})
    if named := _NAMED_SCORE.findall(prompt):
        return json.dumps({name: 1 + int(5 * draw(request, name)) for name in named})
    if '"score" : [...]' in prompt:
        grades_of_edit = [int(11 * draw(request, n)) for n in range(2)]
        return json.dumps({"score": grades_of_edit, "reasoning": "It looks so."})
    if "Alignment Score (1-5)" in prompt:
        axes = ("Alignment", "Coherence", "Style")
        return "\n".join(f"{axis} Score (1-5): {1 + 4 * draw(request, axis)}" for axis in axes)
    if '"score"' in prompt:
        scores = [int(3 * draw(request, n)) / 2 for n, _ in enumerate(_CRITERION.findall(prompt))]
        return json.dumps({"reason": ["It looks so."] * len(scores), "score": scores})
    if grades := _GRADE.findall(prompt):
        return "\n".join(f"{name}: {1 + int(5 * draw(request, name))}" for name in grades)
    if questions := _YES_OR_NO.search(prompt):
        # whatever the words around it are: they may be others when it is asked again
        lines = enumerate(questions[1].split("\n"))
        drawn = [_number(request.images, n, line) for n, line in lines]
        return "\n".join("Yes, it is." if one < 0.6 else "No, it is not." for one in drawn)
    if "Aesthetic Quality" in prompt:
        names = ("Consistency", "Realism", "Aesthetic Quality")
        return "\n".join(f"{name}: {int(3 * draw(request, name))}" for name in names)
    if "Describe" in prompt or "No text recognized" in prompt:
        return " ".join(_READ[int(len(_READ) * draw(request, n))] for n in range(12))
    word = draw(request, "verdict") < 0.6
    return f"Score: {int(word)}" if "Score" in prompt else ("Yes" if word else "No")


def _exam(request: Received, count: int) -> str:
    said = {"reasoning": "It looks so."}
    answers = [{**said, "answer": int(draw(request, n) < 0.8)} for n in range(count)]
    names = ("Spelling", "Clarity and Readability", "Logical Consistency")
    grades = {name: {**said, "score": int(3 * draw(request, name))} for name in names}
    return json.dumps({"description": "A figure.", "answers": answers, "global_evaluation": grades})


def _points(request: Received, count: int) -> str:
    scores = [int(draw(request, n) < 0.6) for n in range(count)]
    analysis = ["It is there." if score else "It is not there." for score in scores]
    return f"<analysis>{analysis}</analysis>\n<score>{scores}</score>"


def completion(
    request: Received, content: Any, finish: str = "stop", logprobs: Any = None, **message: Any
) -> dict[str, Any]:
    """A chat completion with this ``content``."""
    prompt_tokens = 1000 + len(request.prompt) // 4
    completion_tokens = max(1, len(content or "") // 4)
    return {
        "id": "chatcmpl-17",
        "object": "chat.completion",
        "created": 1,
        "model": request.fields.get("model"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, "refusal": None, **message},
                "logprobs": logprobs,
                "finish_reason": finish,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def judged(request: Received) -> dict[str, Any]:
    """The reply of a judge that works."""
    if not request.fields.get("logprobs"):
        return completion(request, verdict(request))
    entries = first_tokens(request, int(request.fields.get("top_logprobs", 0)))
    content = [{**entries[0], "top_logprobs": entries}]
    return completion(request, entries[0]["token"], "length", {"content": content, "refusal": None})


def first_tokens(request: Received, count: int) -> list[dict[str, Any]]:
    """The ``count`` most probable first tokens, the last of them at -9999 as vLLM writes what is impossible."""
    words = _NUMBERS if "How many" in request.prompt else ("yes", "no", "the", "this", "maybe", "not")
    if "for generating this image:" in request.prompt:
        words = _RATINGS
    # of two questions in the same words to the user, what else is told decides
    told = [str(message) for message in request.fields["messages"][:-1]]
    forms = [form for word in words for form in (word, word.title(), f" {word}", f" {word.title()}")]
    digits = [str(n) for n in range(1, 10)] if "How many" in request.prompt else []
    tokens = [*forms, *digits, " ", "\ufffd"]
    weights = {token: -(math.log(1 - draw(request, "token", token, *told)) ** 4) for token in tokens}
    likely = sorted(tokens, key=lambda token: -abs(weights[token]))[: max(1, count)]
    total = math.fsum(abs(weights[token]) for token in tokens) / _LISTED
    entries = [_entry(token, math.log(abs(weights[token]) / total)) for token in likely]
    return entries if count < 2 else [*entries[:-1], _entry("\n\n", -9999.0)]


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
