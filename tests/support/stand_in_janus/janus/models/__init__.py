from .modeling_vlm import MultiModalityCausalLM as MultiModalityCausalLM
from .processing_vlm import VLChatProcessor as VLChatProcessor
