import random

import torch
from utils.generation_utils import cosine_schedule

from tests.support.authors_calls import record


def generate_image(
    model,
    prompt,
    *,
    seq_len=1024,
    newline_every=16,
    timesteps=18,
    mask_token_id=126336,
    newline_id=126084,
    temperature=1.0,
    cfg_scale=0.0,
    uncon_ids,
    code_start=None,
    codebook_size=8192,
    noise_schedule=cosine_schedule,
    text_vocab_size=None,
    generator=None,
    use_cache=False,
    cache_ratio=0.9,
    refresh_interval=5,
    warmup_ratio=0.3,
):
    drawn = (random.random(), torch.rand(()).item())
    record("generate_image", locals())
    return "tokens"
