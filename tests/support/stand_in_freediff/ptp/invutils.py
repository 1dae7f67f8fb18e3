import numpy as np
from PIL import Image


def load_512(image_path, left=0, right=0, top=0, bottom=0, return_type="np", NH=512, NW=512):
    return np.array(Image.fromarray(image_path).resize((NH, NW)))


def img2latn(image, model, DEVICE):
    return "latent"


def encode_text(prompts, model):
    return "embedding"


def ddim_inversion_null_fixpt(x0, model, uncond_emb, save_all=False, INV_STEPS=50, FP_STEPS=3):
    return "noise", []
