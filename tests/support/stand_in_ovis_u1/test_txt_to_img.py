from PIL import Image

from tests.support.authors_calls import record


def pipe_t2i(model, prompt, height, width, steps, cfg, seed=42):
    record("pipe_t2i", locals())
    return [Image.new("RGB", (width, height))]
