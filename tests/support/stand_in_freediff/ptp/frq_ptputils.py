from pathlib import Path

import numpy as np

from tests.support.authors_calls import record


def frq_img_gen(
    model,
    prompt,
    num_infer_steps=50,
    guidance_scale=7.5,
    generator=None,
    latent=None,
    save_dir="./outputs/test/",
    g_seed=None,
    record_time=False,
    mod_guidance_frq=True,
    TS=None,
    FS=None,
    HS=None,
    clear_low=True,
    filter_shape="sq",
    remove=False,
    generate_mask=False,
    record_steps=0,
    gen_MSK_THRS=0.065,
    guide_mask=None,
    reverse_mask=False,
):
    record("frq_img_gen", locals())
    Path(save_dir + "record.txt").touch()
    return ["original", "edited", "null"]


def latn2img(vae, latents):
    return np.zeros((1, 512, 512, 3), np.uint8)
