import json
from pathlib import Path

import torch
from flash_attn import flash_attn_varlen_func

from tests.support.authors_calls import record


class Qwen2Config:
    @classmethod
    def from_json_file(cls, path):
        config = cls()
        config.__dict__.update(json.loads(Path(path).read_text()))
        return config


class Qwen2ForCausalLM(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        record("Qwen2ForCausalLM", dict(config.__dict__))
