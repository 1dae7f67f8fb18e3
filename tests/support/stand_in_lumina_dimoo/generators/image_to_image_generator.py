from utils.generation_utils import cosine_schedule

from tests.support.authors_calls import record


def generate_i2i(
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
    cfg_img=0.0,
    uncon_text,
    uncon_image,
    code_start=None,
    codebook_size=8192,
    noise_schedule=cosine_schedule,
    text_vocab_size=None,
    generator=None,
):
    record("generate_i2i", locals())
    return "tokens"
