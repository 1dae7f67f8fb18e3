"""A judge that a run serves with vLLM, where that is installed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from perf.harness import Row, at_least
from tests.gpu.kit import Kit
from tests.gpu.part import Part
from tests.support.served_benchmark import add_served_benchmark
from tests.support.tiny_vlm import save_qwen3_vl

_LABEL = "vLLM serves a judge for bash eval.sh: questions with a reply / questions"
# large enough for the attention kernels of vLLM
_TEXT: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "initializer_range": 0.02,
    "rope_parameters": {"rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
_VISION: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1024, "num_heads": 8}
_QUESTIONS = 3


def examine(part: Part) -> None:
    """Evaluate a reference model with a served judge."""
    program = shutil.which("vllm", path=f"{sys.prefix}/bin:{os.environ['PATH']}")
    if not program:
        part.skip(_LABEL, "no vllm on PATH")
        return
    judge = part.folder / "judge"
    save_qwen3_vl(judge, text=_TEXT, vision=_VISION, dtype="bfloat16", device="cuda")
    kit = Kit(part, part.folder / "tree", 1)
    add_served_benchmark(kit.checkout, "served")
    with (kit.checkout / "config.local.sh").open("a", encoding="utf-8") as config:
        config.write(f"EVAL_ENV_MAP['vllm']='{Path(program).parents[1]}'\n")
    words = ("--model_names", "reference-noise", "--ds_names", "served", "--judges", f"served=vllm:{judge}")
    print(kit.start(*words).communicate()[0], flush=True)
    replies = kit.records("judgements.jsonl", "served", "reference-noise")
    answered = sum(record["status"] != "failed" for record in replies)
    note = json.dumps(kit.result("reference-noise", "served").get("state"))
    problems = [] if replies else [kit.last_words()]
    part.add(Row(_LABEL, answered / _QUESTIONS, at_least(1.0), {"note": note}, problems))
