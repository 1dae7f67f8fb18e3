"""Diffusion models with the authors' code for subject-driven generation or editing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image

from custom_models.authors import AuthorsModel
from custom_models.model_settings import CLIP_VIT_L_14, OMINICONTROL, SSR_ENCODER_FILES
from custom_models.model_utils.inputs import one_image, split_inputs, split_subject
from custom_models.model_utils.loading import weights_folder
from imageevalkit.generate.model import Generated, ModelUnusable

_SIDE = 512  # pixels of OminiControl's condition and of FreeDiff's output
_BESIDE = (0, 32)  # offset of the condition in tokens: to the right of an image of 512 pixels
_LOW_PASS = (32,) * 6  # FreeDiff's filter sizes in tokens of 8 pixels; 32 passes everything


@dataclass(kw_only=True, eq=False)
class OminiControlSubject(AuthorsModel):
    """OminiControl: FLUX.1-schnell with a LoRA and the authors' conditioning on an image of the subject.

    The image is cropped to a square and scaled to 512 x 512 pixels.

    Args:
        model_path: folder or hub repository with ``omini/subject_512.safetensors``.
        base_path, base_revision: FLUX.1-schnell, a folder or a hub repository at a commit.
        num_inference_steps: denoising steps.
        width, height: size of the output in pixels.
        image_guidance_scale: guidance towards the subject's image; 1 means none.

    Source: Yuanshi9815/OminiControl@331dd34e, examples/subject.ipynb (settings), README.md ("Guidelines": the cut).
    """

    code = "ominicontrol"

    base_path: str
    base_revision: str | None = None
    num_inference_steps: int
    width: int
    height: int
    image_guidance_scale: float

    def load(self) -> None:
        with self.loading(self.base_path):
            import torch
            from diffusers.pipelines import FluxPipeline

            self._omini = import_module("omini.pipeline.flux_omini")
            # the authors' seeding sets this too
            torch.backends.cudnn.deterministic = True
            pipeline = FluxPipeline.from_pretrained(
                self.base_path, revision=self.base_revision, torch_dtype=torch.bfloat16
            )
        (file,) = OMINICONTROL.patterns
        lora = weights_folder(self.model_path, self.revision, [file]) / file
        self._pipeline: Any = pipeline.to(self.device)
        self._pipeline.load_lora_weights(str(lora.parent), weight_name=lora.name, adapter_name="subject")
        self._pipeline.set_progress_bar_config(disable=True)

    def make(self, given: Sequence[str | Image.Image], seed: int) -> Generated:
        """Returns one image. The prompt stays unchanged; the model calls its subject "this item".

        Raises ItemFailed unless the item has exactly one image of the subject and a prompt.
        """
        subject = split_subject(given)
        image = one_image(subject.images, "OminiControl")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side)).resize((_SIDE, _SIDE))
        made = self._omini.generate(
            self._pipeline,
            prompt=subject.prompt,
            conditions=[self._omini.Condition(square, "subject", position_delta=_BESIDE)],
            **self.chosen("num_inference_steps", "width", "height", "image_guidance_scale"),
        )
        return Generated(made.images[0], requested_size=(self.width, self.height))


@dataclass(kw_only=True, eq=False)
class SSREncoderSubject(AuthorsModel):
    """SSR-Encoder: Stable Diffusion 1.5 that attends to the named subject in an image.

    Args:
        model_path: folder with ``pytorch_model.bin`` and ``pytorch_model_1.bin``.
        base_path, base_revision: Stable Diffusion 1.5, a folder or a hub repository at a commit.
        encoder_path, encoder_revision: CLIP ViT-L/14, likewise.
        num_inference_steps, guidance_scale, width, height: as in diffusers.
        scale: weight of the subject.
        negative_prompt: as in diffusers.

    Source: Xiaojiu-z/SSR_Encoder@7bb5f684, infer_text.py.
    """

    code = "ssr-encoder"

    base_path: str
    base_revision: str | None = None
    encoder_path: str
    encoder_revision: str | None = None
    num_inference_steps: int
    guidance_scale: float
    scale: float
    negative_prompt: str
    width: int
    height: int

    def load(self) -> None:
        with self.loading(self.base_path):
            import torch
            from diffusers import UniPCMultistepScheduler

            ssr_encoder = import_module("ssr_encoder").SSR_encoder
            pipeline_class = import_module("utils.pipeline_t2i").StableDiffusionPipeline
            aligner, layers = self._files()
            pipeline = pipeline_class.from_pretrained(
                self.base_path, revision=self.base_revision, safety_checker=None, torch_dtype=torch.float32
            ).to(self.device)
        pipeline.scheduler = UniPCMultistepScheduler.from_config(pipeline.scheduler.config)
        pipeline.set_progress_bar_config(disable=True)
        with self.loading(self.encoder_path):
            encoder = str(weights_folder(self.encoder_path, self.encoder_revision, CLIP_VIT_L_14.patterns))
            self._model: Any = ssr_encoder(pipeline.unet, encoder, self.device, dtype=torch.float32)
        self._model.get_pipe(pipeline)
        self._model.load_SSR(str(aligner), str(layers))

    def _files(self) -> tuple[Path, Path]:
        """Returns both weight files. Raises ModelUnusable if one is missing: no hub has them."""
        folder = Path(self.model_path)
        if self.revision is not None:
            folder = weights_folder(self.model_path, self.revision, SSR_ENCODER_FILES)
        aligner, layers = (folder / name for name in SSR_ENCODER_FILES)
        if missing := [path.name for path in (aligner, layers) if not path.is_file()]:
            raise ModelUnusable(
                f"{folder} lacks {' and '.join(missing)}: bash eval.sh prefetch --model_names ssr-encoder says "
                "where to get them"
            )
        return aligner, layers

    def make(self, given: Sequence[str | Image.Image], seed: int) -> Generated:
        """Returns one image. Raises ItemFailed unless the item has exactly one image, a name and a prompt."""
        subject = split_subject(given)
        image = subject.image_of_a_name("SSR-Encoder")
        images = self._model.generate(
            pil_image=image,
            concept=subject.name,
            uncond_concept="",
            prompt=subject.prompt,
            num_samples=1,
            seed=seed,
            **self.chosen("num_inference_steps", "guidance_scale", "scale", "negative_prompt"),
            **self.chosen("width", "height"),
        )
        return Generated(images[0], requested_size=(self.width, self.height))


@dataclass(kw_only=True, eq=False)
class FreeDiffEdit(AuthorsModel):
    """FreeDiff: edits with plain Stable Diffusion; a filter removes low frequencies of the guidance in early
    steps.

    The input is one image, cropped to its centre square and scaled to 512 x 512 pixels. The output is
    deterministic.

    Args:
        model_path: Stable Diffusion 1.5, a folder or a hub repository.
        num_inference_steps: DDIM steps of the inversion and of the edit.
        guidance_scale: guidance towards the prompt.
        fixed_point_steps: iterations that make each step of the inversion exact.
        time_steps: times at which the filter changes, from 999 (noise) down to 0.
        filter_sizes: sizes of the square high-pass filter, one per interval between these times, so one more
            than ``time_steps``; 0 passes the whole guidance, 32 nothing.
        device: a torch device, but not ``cpu``: the authors' filter needs the index of a GPU.

    Source: Thermal-Dynamics/FreeDiff@4b4af6cb, examples.ipynb and readme.md.
    """

    code = "freediff"
    seed_honoured = False

    num_inference_steps: int
    guidance_scale: float
    fixed_point_steps: int
    time_steps: Sequence[int]
    filter_sizes: Sequence[int]

    def load(self) -> None:
        from diffusers import DDIMScheduler, StableDiffusionPipeline

        self._edit, self._inversion = map(import_module, ("ptp.frq_ptputils", "ptp.invutils"))
        scheduler = DDIMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
        )
        # in float32; the safety checker is left out because only the pipeline's own call would use it
        pipeline = StableDiffusionPipeline.from_pretrained(
            self.model_path,
            revision=self.revision,
            scheduler=scheduler,
            safety_checker=None,
            requires_safety_checker=False,
        )
        self._model: Any = pipeline.to(self.device)

    def make(self, given: Sequence[str | Image.Image], seed: int) -> Generated:
        """Returns one edited image, the same for every seed. The text describes the result, such as "a
        marmot".

        Raises ItemFailed unless the item has exactly one input image.
        """
        import numpy as np

        images, text = split_inputs(given)
        image = one_image(images, "FreeDiff")
        inversion, model, steps = self._inversion, self._model, self.num_inference_steps
        model.scheduler.set_timesteps(steps)
        square = inversion.load_512(np.array(image))
        noise, _ = inversion.ddim_inversion_null_fixpt(
            inversion.img2latn(square, model, self.device),
            model,
            inversion.encode_text("", model),
            FP_STEPS=self.fixed_point_steps,
            INV_STEPS=steps,
        )
        # the function always writes its images and settings to a folder
        with tempfile.TemporaryDirectory() as folder:
            _, edited, _ = self._edit.frq_img_gen(
                model,
                [text],
                num_infer_steps=steps,
                latent=noise,
                save_dir=f"{folder}/",
                mod_guidance_frq=True,
                guidance_scale=self.guidance_scale,
                TS=tuple(self.time_steps),
                FS=tuple(self.filter_sizes),
                HS=_LOW_PASS,
                filter_shape="sq",
                clear_low=True,
            )
        pixels = self._edit.latn2img(model.vae, edited)[0]
        return Generated(Image.fromarray(pixels), requested_size=(_SIDE, _SIDE))
