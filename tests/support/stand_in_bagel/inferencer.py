from PIL import Image

from tests.support.authors_calls import record


class InterleaveInferencer:
    def __init__(self, model, vae_model, tokenizer, vae_transform, vit_transform, new_token_ids):
        record("InterleaveInferencer", locals())

    def interleave_inference(
        self,
        input_lists,
        think=False,
        understanding_output=False,
        max_think_token_n=1000,
        do_sample=False,
        text_temperature=0.3,
        cfg_text_scale=3.0,
        cfg_img_scale=1.5,
        cfg_interval=[0.4, 1.0],
        timestep_shift=3.0,
        num_timesteps=50,
        cfg_renorm_min=0.0,
        cfg_renorm_type="global",
        image_shapes=(1024, 1024),
        enable_taylorseer=False,
    ):
        import random

        import numpy
        import torch

        drawn = (random.random(), numpy.random.rand(), torch.rand(()).item())
        record("interleave_inference", locals())
        height, width = image_shapes
        return ["a plan"] * think + [Image.new("RGB", (width, height))]
