import torch
from flash_attn import flash_attn_varlen_func

from tests.support.authors_calls import record

from .qwen2_navit import Qwen2Config


class SiglipVisionConfig(Qwen2Config):
    pass


class SiglipVisionEmbeddings(torch.nn.Module):
    def convert_conv2d_to_linear(self, config, meta=False):
        record("convert_conv2d_to_linear", {"meta": meta})


class SiglipVisionModel(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        record("SiglipVisionModel", dict(config.__dict__))
        self.vision_model = torch.nn.Module()
        self.vision_model.embeddings = SiglipVisionEmbeddings()
