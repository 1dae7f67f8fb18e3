"""FLUX.1 with an IP-Adapter: the image's CLIP embedding steers the picture beside the prompt."""

from __future__ import annotations

from typing import Any

from PIL import Image

from custom_models.model_settings.weights import CLIP_VIT_L_14
from custom_models.model_utils.adapters import weights_folder
from custom_models.model_utils.diffusers_common import DiffusersModel
from custom_models.model_utils.diffusers_loading import part_dtype
from custom_models.model_utils.diffusers_subject import DiffusersSubject


class FluxIPAdapter(DiffusersSubject):
    """Exactly one image of the subject; see :class:`DiffusersModel` for the other settings.

    Args:
        ip_adapter: folder or hub id of the adapter's weights.
        ip_adapter_revision: commit of that repository.
        ip_adapter_file: the weights' name there.
        ip_adapter_scale: how much the image counts, 0..1.
        image_encoder: folder or hub id of the CLIP model that the adapter was trained with.
        image_encoder_revision: commit of that repository.
    """

    reserved = DiffusersModel.reserved | {"ip_adapter_image", "ip_adapter_image_embeds"}

    def __init__(
        self,
        model_path: str,
        *,
        ip_adapter: str,
        image_encoder: str,
        ip_adapter_revision: str | None = None,
        ip_adapter_file: str = "ip_adapter.safetensors",
        ip_adapter_scale: float = 1.0,
        image_encoder_revision: str | None = None,
        **settings: Any,
    ) -> None:
        self._adapter = (ip_adapter, ip_adapter_revision, ip_adapter_file)
        self._encoder = (image_encoder, image_encoder_revision)
        self._scale = ip_adapter_scale
        super().__init__(model_path, **settings)

    def _add_parts(self, pipeline: Any) -> None:
        path, revision, file = self._adapter
        encoder, encoder_revision = self._encoder
        pipeline.load_ip_adapter(
            str(weights_folder(path, revision, [file])),
            weight_name=file,
            image_encoder_pretrained_model_name_or_path=str(
                weights_folder(encoder, encoder_revision, CLIP_VIT_L_14.patterns)
            ),
            image_encoder_dtype=part_dtype(self.dtype, "image_encoder"),
        )
        pipeline.set_ip_adapter_scale(self._scale)

    def _inputs(self, images: list[Image.Image], prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, "ip_adapter_image": images[0]}
