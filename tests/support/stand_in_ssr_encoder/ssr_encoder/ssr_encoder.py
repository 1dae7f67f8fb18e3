import torch
from PIL import Image

from tests.support.authors_calls import record


class SSR_encoder(torch.nn.Module):
    def __init__(
        self, unet, image_encoder_path, device="cuda", dtype=torch.float32, is_animate=False, is_mask=False
    ):
        super().__init__()
        record("SSR_encoder", locals())

    def get_pipe(self, pipe):
        self.pipe = pipe

    def load_SSR(self, aligner_path, layers_path):
        record("load_SSR", locals())

    def generate(
        self,
        pil_image,
        concept,
        uncond_concept=" ",
        prompt=" ",
        negative_prompt=" ",
        scale=1.0,
        num_samples=1,
        seed=None,
        guidance_scale=7.5,
        num_inference_steps=30,
        height=512,
        width=512,
    ):
        record("generate", {**locals(), "scheduler": type(self.pipe.scheduler).__name__})
        return [Image.new("RGB", (width, height))]
