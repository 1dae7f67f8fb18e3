"""The judges with a short name. A user names any other model as ``backend:model``."""

from __future__ import annotations

from imageevalkit.judges.choice import JudgeSetting

JUDGE_SETTINGS: dict[str, JudgeSetting] = {
    "gpt-4o-2024-05-13": JudgeSetting("openai", "gpt-4o-2024-05-13"),
    "qwen2.5-vl-7b": JudgeSetting(
        "transformers",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        {"revision": "cc594898137f460bfe9f0759e9844b3ce807cfb5"},
    ),
    "qwen2.5-vl-32b": JudgeSetting("transformers", "Qwen/Qwen2.5-VL-32B-Instruct"),
    "qwen2.5-vl-72b": JudgeSetting("transformers", "Qwen/Qwen2.5-VL-72B-Instruct"),
    "qwen3-vl-8b": JudgeSetting(
        "transformers",
        "Qwen/Qwen3-VL-8B-Instruct",
        {"revision": "0c351dd01ed87e9c1b53cbc748cba10e6187ff3b"},
    ),
    "qwen3.5-35b-a3b": JudgeSetting("vllm", "Qwen/Qwen3.5-35B-A3B"),
}
