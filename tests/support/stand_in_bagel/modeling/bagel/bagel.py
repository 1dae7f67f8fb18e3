import torch

from tests.support.authors_calls import record


class BagelConfig:
    def __init__(
        self,
        visual_gen=True,
        visual_und=True,
        llm_config=None,
        vit_config=None,
        vae_config=None,
        latent_patch_size=2,
        max_latent_size=32,
        vit_max_num_patch_per_side=70,
        connector_act="gelu_pytorch_tanh",
        interpolate_pos=False,
        timestep_shift=1.0,
        **kwargs,
    ):
        if kwargs:
            raise TypeError(kwargs)
        record("BagelConfig", locals())


class Bagel(torch.nn.Module):
    def __init__(self, language_model, vit_model, config):
        super().__init__()
        self.language_model, self.vit_model = language_model, vit_model
        self.vae2llm = torch.nn.Linear(2, 2)
