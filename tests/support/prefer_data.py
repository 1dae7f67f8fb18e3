"""A stand-in of the published list of prompts that the benchmark prefer uses by default."""

PROMPTS = "".join(f"a thing of kind {n}\n" for n in range(2048))
