"""The asking part of an evaluate job: ``python -m perf.judge_job --questions FILE --out FILE``.

The judge is made and asked as ``imageevalkit.evaluation.judging`` does it, options from the environment, and each
answer is written when it comes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from eval_models.judge.options import JudgeOptions
from eval_models.judge.registry import make_judge
from imageevalkit.evaluation.question import Message, Picture, Question, Sampling
from imageevalkit.jsonl import JsonlWriter

_SAMPLING = Sampling(500, 0.0, extra={"chat_template_kwargs": {"enable_thinking": False}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    questions = []
    for each in json.loads(options.questions.read_text()):
        picture = Picture(Path(each["image"]), "", "image/png")
        messages = (Message("system", (each["system"],)), Message("user", (each["user"], picture)))
        questions.append(Question(each["item"], "score", messages, _SAMPLING))
    judge = make_judge("openai:some-judge", JudgeOptions.from_environment())
    with JsonlWriter(options.out) as writer:
        for answer in judge.ask(questions):
            text = answer.reply.text if answer.reply else None
            writer.append({"item": answer.question.item, "raw": text, "error": answer.error})


if __name__ == "__main__":
    main()
