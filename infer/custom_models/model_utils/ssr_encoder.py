"""SSR-Encoder: Stable Diffusion 1.5 that attends to what a name picks out of the subject's image."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models import authors_code
from custom_models.model_settings.weights import CLIP_VIT_L_14, SSR_ENCODER_FILES
from custom_models.model_utils.adapters import best_device, loading, weights_folder
from custom_models.model_utils.inputs import one_image, split_subject
from imageevalkit.generation.model import Generated, ItemFailed, ModelUnusable


class SSREncoderSubject:
    """Subject-driven generation from one image and the subject's name.

    Args:
        model_path: folder with ``pytorch_model.bin`` and ``pytorch_model_1.bin``.
        revision: commit of a hub repository, if ``model_path`` is one.
        base_path, base_revision: Stable Diffusion 1.5, a folder or a hub repository at a commit.
        encoder_path, encoder_revision: CLIP ViT-L/14, likewise.
        num_inference_steps, guidance_scale, width, height: as in diffusers.
        scale: weight of the subject.
        negative_prompt: what to keep away from.
        device: a torch device.

    Source: Xiaojiu-z/SSR_Encoder@7bb5f684, infer_text.py.

    Raises:
        ModelUnusable: code, packages, weights or GPU are missing.
    """

    def __init__(
        self,
        model_path: str,
        *,
        revision: str | None = None,
        base_path: str,
        base_revision: str | None = None,
        encoder_path: str,
        encoder_revision: str | None = None,
        num_inference_steps: int,
        guidance_scale: float,
        scale: float,
        negative_prompt: str,
        width: int,
        height: int,
        device: str = "cuda",
    ) -> None:
        self.model_name = Path(model_path).name
        self._settings: dict[str, Any] = {
            "num_inference_steps": num_inference_steps,
            "guidance_scale": guidance_scale,
            "scale": scale,
            "negative_prompt": negative_prompt,
            "width": width,
            "height": height,
        }
        authors_code.use("ssr-encoder")
        with loading(base_path, "ssr-encoder"):
            import torch
            from diffusers import UniPCMultistepScheduler

            ssr_encoder = import_module("ssr_encoder").SSR_encoder
            device = best_device(device)
            aligner, layers = _weights(model_path, revision)
            pipeline = (
                import_module("utils.pipeline_t2i")
                .StableDiffusionPipeline.from_pretrained(
                    base_path, revision=base_revision, safety_checker=None, torch_dtype=torch.float32
                )
                .to(device)
            )
        pipeline.scheduler = UniPCMultistepScheduler.from_config(pipeline.scheduler.config)
        pipeline.set_progress_bar_config(disable=True)
        with loading(encoder_path, "ssr-encoder"):
            encoder = str(weights_folder(encoder_path, encoder_revision, CLIP_VIT_L_14.patterns))
            self._model: Any = ssr_encoder(pipeline.unet, encoder, device, dtype=torch.float32)
        with loading(model_path, "ssr-encoder"):
            self._model.get_pipe(pipeline)
            self._model.load_SSR(str(aligner), str(layers))

    def generate(self, input_list: Sequence[str | Image.Image], seed: int = 42) -> Generated:
        """One image.

        Raises:
            ItemFailed: there is not exactly one image of the subject, or no name or no prompt.
        """
        subject = split_subject(input_list)
        image = one_image(subject.images, "SSR-Encoder")
        if not subject.name:
            raise ItemFailed("SSR-Encoder takes the subject's name, the item has none", attempts=0)
        images = self._model.generate(
            pil_image=image,
            concept=subject.name,
            uncond_concept="",
            prompt=subject.prompt,
            num_samples=1,
            seed=seed,
            **self._settings,
        )
        return Generated(images[0], requested_size=(self._settings["width"], self._settings["height"]))


def _weights(model_path: str, revision: str | None) -> tuple[Path, Path]:
    """Both files. Raises ModelUnusable: they are on no hub, so nobody can fetch them by name."""
    folder = Path(model_path)
    if revision is not None and not folder.is_dir():
        folder = weights_folder(model_path, revision, SSR_ENCODER_FILES)
    missing = [name for name in SSR_ENCODER_FILES if not (folder / name).is_file()]
    if missing:
        raise ModelUnusable(
            f"{folder} lacks {' and '.join(missing)}: bash utils/prefetch.sh --model_names ssr-encoder says "
            "where to get them"
        )
    aligner, layers = (folder / name for name in SSR_ENCODER_FILES)
    return aligner, layers
