"""The rewrite stage: a language model rewrites prompts before images are generated."""
