from .bagel import Bagel, BagelConfig
from .qwen2_navit import Qwen2Config, Qwen2ForCausalLM
from .siglip_navit import SiglipVisionConfig, SiglipVisionModel
