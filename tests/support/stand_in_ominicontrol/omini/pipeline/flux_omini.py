from types import SimpleNamespace

import numpy
import torch
from PIL import Image

from tests.support.authors_calls import record


class Condition:
    def __init__(
        self,
        condition,
        adapter_setting,
        position_delta=None,
        position_scale=1.0,
        latent_mask=None,
        is_complement=False,
    ):
        record("Condition", locals())


def generate(
    pipeline,
    prompt=None,
    prompt_2=None,
    height=512,
    width=512,
    num_inference_steps=28,
    timesteps=None,
    guidance_scale=3.5,
    num_images_per_prompt=1,
    generator=None,
    latents=None,
    prompt_embeds=None,
    pooled_prompt_embeds=None,
    output_type="pil",
    return_dict=True,
    joint_attention_kwargs=None,
    callback_on_step_end=None,
    callback_on_step_end_tensor_inputs=["latents"],
    max_sequence_length=512,
    main_adapter=None,
    conditions=[],
    image_guidance_scale=1.0,
    transformer_kwargs={},
    kv_cache=False,
    latent_mask=None,
    **params,
):
    if params:
        raise TypeError(params)
    drawn = (torch.rand(()).item(), numpy.random.rand())
    record("generate", locals())
    return SimpleNamespace(images=[Image.new("RGB", (width, height))])
