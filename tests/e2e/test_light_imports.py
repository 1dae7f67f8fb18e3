"""Programs that plan and check import no heavy package."""

from __future__ import annotations

import sys

from imageevalkit.store.cell import REPO
from tests.support.tree import run


def test_who_answers_is_known_without_a_heavy_import() -> None:
    code = (
        "import sys; from imageevalkit import registry as r; r.choose_judge('qwen3-vl-8b'); "
        "r.measurer_names('reader'); "
        "r.measurer_assets('dreamsim', {}); r.measurer_missing('csd+se', {}); r.measurer('llm2clip', {}); "
        "r.judge('qwen3-vl-8b', {}).label; "
        "assert not {'torch', 'transformers', 'numpy', 'onnxruntime', 'httpx2'} & set(sys.modules)"
    )
    assert run(sys.executable, "-c", code, cwd=REPO).returncode == 0
