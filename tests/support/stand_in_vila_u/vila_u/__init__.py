"""Stand-in for the package of mit-han-lab/vila-u; what it imports of transformers must be the authors' own."""

import transformers.generation.utils
import transformers.models.llama.modeling_llama
import transformers.models.llama.tokenization_llama

from .entry import load as load

REPLACED = [
    transformers.generation.utils.WHOSE,
    transformers.models.llama.modeling_llama.WHOSE,
    transformers.models.llama.tokenization_llama.WHOSE,
]
