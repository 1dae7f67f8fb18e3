"""Rewriting prompts with a language model before images are made of them."""
