from .tokenization_qwen2 import Qwen2Tokenizer
