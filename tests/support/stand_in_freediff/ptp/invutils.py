import numpy as np
from PIL import Image

from tests.support.authors_calls import record


def load_512(image_path, left=0, right=0, top=0, bottom=0, return_type="np", NH=512, NW=512):
    record("load_512", locals())
    return np.array(Image.fromarray(image_path).resize((NH, NW)))


def img2latn(image, model, DEVICE):
    record("img2latn", locals())
    return "latent"


def encode_text(prompts, model):
    record("encode_text", locals())
    return "embedding"


def ddim_inversion_null_fixpt(x0, model, uncond_emb, save_all=False, INV_STEPS=50, FP_STEPS=3):
    record("ddim_inversion_null_fixpt", {**locals(), "steps": len(model.scheduler.timesteps)})
    return "noise", []
