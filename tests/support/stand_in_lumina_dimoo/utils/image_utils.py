import torch
from PIL import Image

from tests.support.authors_calls import record


def calculate_vq_params(image_height, image_width, vae_scale=16):
    rows, columns = image_height // vae_scale, image_width // vae_scale
    return rows * columns, columns, rows, columns


def add_break_line(sequence, H, W, new_number=0):
    return [number for row in range(H) for number in [*sequence[row * W : (row + 1) * W], new_number]]


def generate_crop_size_list(num_patches, patch_size, max_ratio=4.0):
    return [(64, 32)]


def var_center_crop(pil_image, crop_size_list, random_top_k=1):
    return pil_image.crop((0, 0, *crop_size_list[0]))


def encode_img_with_breaks(img, vqvae, vae_scale_factor=16):
    return [904, 700, 905]


def decode_vq_to_image(vq_codes, save_path, vae_ckpt, image_height, image_width, vqvae=None):
    without_gradients = torch.is_inference_mode_enabled()
    record("decode_vq_to_image", locals())
    return Image.new("RGB", (image_width, image_height))
