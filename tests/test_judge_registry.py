"""The judges by the name a user gives."""

from __future__ import annotations

import os

import pytest

from imageevalkit.registry import choose_judge


@pytest.mark.parametrize("backend", ["transformers", "vllm"])
def test_home_is_found_in_every_local_judge(backend: str) -> None:
    choice = choose_judge(f"{backend}:~/judge")
    assert choice.setting.model_path == os.environ["HOME"] + "/judge"
    assert choice.full_name == f"{backend}:~/judge", "as the user's settings of it are named"
    assert choose_judge("openai:~/judge").setting.model_path == "~/judge", "an API's own name"
