"""The official code that scores reasoning, run on small models; it is read from its repository at test time."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.official_oneig import official_source

_FOLDER = "scripts/utils/llm2clip/llm2vec"
# by this name the official code knows that the model wants a user's turn around its text
_NAME = "meta-llama/Meta-Llama-3-8B-Instruct"


def official_llm2vec(folder: str, monkeypatch: pytest.MonkeyPatch, *, causal: bool = False) -> Any:
    """The official LLM2Vec around the LLM in ``folder``; skips the test where there is no copy of the code.

    The LLM is transformers' Llama in bfloat16, bidirectional by a setting of its configuration (``causal``: not),
    because the official bidirectional class is causal in transformers 5.
    """
    import torch
    from transformers import AutoTokenizer, LlamaModel

    source = official_source(f"{_FOLDER}/llm2vec.py")
    # what it imports and, with a model that is there already, does not use
    _module(monkeypatch, "peft", PeftModel=None)
    _module(monkeypatch, "official_llm2vec", __path__=[])
    _module(monkeypatch, "official_llm2vec.models", LlamaBiModel=None)
    module = _module(monkeypatch, "official_llm2vec.llm2vec", __package__="official_llm2vec")
    exec(compile(source, f"{_FOLDER}/llm2vec.py", "exec"), module.__dict__)
    model = LlamaModel.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    model.config.is_causal = causal
    model.config._name_or_path = _NAME
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return module.__dict__["LLM2Vec"](
        model, tokenizer, pooling_mode="mean", max_length=512, doc_max_length=512
    )


def official_similarities(
    images: Sequence[Path],
    text: str,
    *,
    llm2vec: Any,
    processor: Any,
    image_features: Callable[[Any], Any],
    text_features: Callable[[Any], Any],
) -> list[float]:
    """The official method's cosines of ``images`` and ``text`` on the CPU, with the given models."""
    import torch
    from PIL import Image

    tree = ast.parse(official_source("scripts/utils/inference.py"))
    (owner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LLM2CLIP")
    name = "text_img_similarity_score"
    method = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name]
    space: dict[str, Any] = {"torch": torch, "Image": Image}
    exec(compile(ast.Module(list(method), []), "inference.py", "exec"), space)
    models = types.SimpleNamespace(
        processor=processor,
        l2v=llm2vec,
        model=types.SimpleNamespace(get_image_features=image_features, get_text_features=text_features),
        device="cpu",
    )
    found = space[name](models, [str(path) for path in images], text)
    assert found is not None, "the official method printed why it failed"
    return list(found)


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    # transformers asks importlib whether peft is there, which needs a specification
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module
