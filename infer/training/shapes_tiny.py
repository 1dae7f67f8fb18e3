"""Trains shapes-tiny: ``python -m infer.training.shapes_tiny FOLDER``. Run it again to continue after an interruption.

It trains an autoencoder on scenes that it draws, then a text encoder and a UNet on the scenes' latents, by flow
matching. All classes are those of diffusers and transformers, so each folder ``FOLDER/step-N`` is a pipeline that
diffusers loads. ``FOLDER/log.jsonl`` holds losses and scores.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderTiny,
    DPMSolverMultistepScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from diffusers.models.attention_processor import AttnProcessor
from diffusers.models.unets.unet_2d_blocks import AutoencoderTinyBlock
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast

from benchmarks.quickshapes import prompts, scenes
from benchmarks.quickshapes.judge import objects_in
from imageevalkit.common.errors import say
from imageevalkit.common.machine import available_cores

HERE = Path(__file__).resolve().parent
PROMPTS = HERE.parents[1] / "benchmarks" / "quickshapes" / "prompts.jsonl"
_SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
_LOG_STEPS = 100
_SAVE_SECONDS = 300
_PART = 1024  # scenes that a process draws at once


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where checkpoints, latents and the log go")
    parser.add_argument("--configuration", type=Path, default=HERE / "shapes_tiny.json")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    configuration = json.loads(given.configuration.read_text(encoding="utf-8"))
    begun = given.folder / "configuration.json"
    if begun.is_file() and json.loads(begun.read_text(encoding="utf-8")) != configuration:
        parser.error(f"{given.folder} holds a training with other settings ({begun}): choose another folder")
    begun.write_text(json.dumps(configuration, indent=2), encoding="utf-8")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    log = Log(given.folder / "log.jsonl")
    if not (given.folder / "vae").is_dir():
        train_autoencoder(configuration, given.folder, device, log)
    Training(configuration, given.folder, device, log).run()


class Log:
    """Says records and appends them to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, **record: Any) -> None:
        record["time"] = time.strftime("%Y-%m-%d %H:%M:%S")
        line = json.dumps({name: round(v, 5) if isinstance(v, float) else v for name, v in record.items()})
        say(line)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Pace:
    """Returns images per second since the previous call, and the minutes left."""

    def __init__(self, step: int) -> None:
        self.step, self._time = step, time.time()

    def __call__(self, step: int, steps: int, batch: int) -> dict[str, Any]:
        seconds, done = time.time() - self._time, step - self.step
        self.step, self._time = step, time.time()
        return {
            "images/s": round(done * batch / seconds, 1),
            "minutes left": round((steps - step) * seconds / done / 60, 1),
        }


def generator_of(device: torch.device, *numbers: int) -> torch.Generator:
    """Returns a generator that depends on the numbers only, so that a continued training draws the same.

    Another type of device draws other numbers.
    """
    state = np.random.SeedSequence(numbers).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0] >> 1))


def requests(seed: str, count: int, mixture: Mapping[str, float]) -> Iterator[tuple[prompts.Request, Random]]:
    """Yields random requests, none of which means the same as a request of the benchmark."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    held_out = {prompts.request_of(json.loads(line)).key() for line in lines}
    random = Random(seed)
    for _ in range(count):
        (category,) = random.choices([*mixture], [*mixture.values()])
        request = prompts.random_request(random, category)
        while request.key() in held_out:
            request = prompts.random_request(random, category)
        yield request, random


def drawn(
    name: str,
    count: int,
    mixture: Mapping[str, float],
    backgrounds: Sequence[scenes.Colour] = scenes.BACKGROUNDS,
) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yields parts of ``count`` scenes and their prompts, drawn by all cores: pixels of (N, 96, 96, 3), uint8."""
    parts = [
        (min(_PART, count - at), mixture, backgrounds, f"{name} {at // _PART}")
        for at in range(0, count, _PART)
    ]
    cores = available_cores()
    # Not "spawn": each process would import torch. These processes use neither torch nor a GPU.
    with multiprocessing.get_context("fork").Pool(cores) as pool:
        for at in range(0, len(parts), cores):
            yield from pool.starmap(_drawn_part, parts[at : at + cores], chunksize=1)


def _drawn_part(
    count: int, mixture: Mapping[str, float], backgrounds: Sequence[scenes.Colour], seed: str
) -> tuple[np.ndarray, list[str]]:
    pixels, texts = list[np.ndarray](), list[str]()
    for request, random in requests(seed, count, mixture):
        texts.append(prompts.prompt_of(request, random))
        pixels.append(np.asarray(scenes.draw(request, random, backgrounds)))
    return np.stack(pixels), texts


def as_input(pixels: torch.Tensor) -> torch.Tensor:
    """Returns images of (N, 96, 96, 3), uint8, as the autoencoder takes them: (N, 3, 96, 96), from −1 to 1."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


# ---- autoencoder


def new_autoencoder(settings: Mapping[str, Any]) -> AutoencoderTiny:
    """Returns an autoencoder that makes 12 × 12 latents of 96 × 96 pixels.

    Each residual block begins as the identity: with the default initialisation training takes several times longer.
    """
    channels = (settings["channels"],) * 4
    vae = AutoencoderTiny(
        latent_channels=settings["latent_channels"],
        encoder_block_out_channels=channels,
        decoder_block_out_channels=channels,
        num_encoder_blocks=(0, 1, 2, 2),
        num_decoder_blocks=(3, 2, 1, 0),
    )
    for module in vae.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    for module in vae.modules():
        if isinstance(module, AutoencoderTinyBlock):
            torch.nn.init.zeros_(module.conv[-1].weight)
    with torch.no_grad():
        vae.encoder.layers[-1].weight.mul_(0.5)
        vae.decoder.layers[-1].weight.mul_(0.1)
        vae.decoder.layers[-1].bias.fill_(0.8)
    return vae


def train_autoencoder(configuration: Mapping[str, Any], folder: Path, device: torch.device, log: Log) -> None:
    """Trains the autoencoder on pieces of scenes, and saves it as ``vae``.

    Latents get a little noise, so that the decoder forgives the errors of the diffusion.
    """
    settings, seed = configuration["autoencoder"], configuration["seed"]
    torch.manual_seed(seed)
    vae = new_autoencoder(settings).to(device)
    optimizer = torch.optim.AdamW(vae.parameters(), betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    parts = drawn(f"{seed} autoencoder", settings["scenes"], configuration["mixture"])
    images = torch.from_numpy(np.concatenate([pixels for pixels, _ in parts])).to(device)
    state, step = folder / "autoencoder.pt", 0
    if state.is_file():
        saved = torch.load(state, map_location=device)
        step = saved["step"]
        vae.load_state_dict(saved["vae"])
        optimizer.load_state_dict(saved["optimizer"])
    steps, batch, crop = settings["steps"], settings["batch"], settings["crop"]
    pace, errors_seen = Pace(step), list[torch.Tensor]()
    while step < steps:
        generator = generator_of(device, seed, 1, step)
        chosen = torch.randint(len(images), (batch,), generator=generator, device=device)
        top, left = np.random.default_rng((seed, step)).integers(0, scenes.SIZE - crop + 1, 2).tolist()
        inputs = as_input(images[chosen, top : top + crop, left : left + crop])
        with torch.autocast(device.type, torch.bfloat16):
            latents = vae.encoder(inputs).float()
            noise = torch.randn(latents.shape, generator=generator, device=device)
            decoded = vae.decoder(latents + 0.1 * noise).float()
        errors = (decoded - inputs) / 2
        deviation, mean = torch.std_mean(latents, (0, 2, 3))
        unlike_noise = ((deviation - 1) ** 2 + mean**2).mean()
        loss = errors.abs().mean() + 4 * errors.square().mean() + 0.01 * unlike_noise
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * min(1, step / 100) * (1.02 - step / steps) ** 0.7
        optimizer.step()
        step += 1
        errors_seen.append(errors.detach().square().mean())
        if step % (4 * _LOG_STEPS) == 0 or step == steps:
            psnr = -10 * torch.stack(errors_seen).mean().log10().item()
            log(stage="autoencoder", step=step, steps=steps, psnr=psnr, **pace(step, steps, batch))
            errors_seen = []
            _save({"step": step, "vae": vae.state_dict(), "optimizer": optimizer.state_dict()}, state)
    with torch.no_grad():
        spread = torch.cat([vae.encoder(as_input(part)) for part in images[:512].split(64)]).std().item()
    vae.register_to_config(scaling_factor=1 / spread)
    _save_model(vae, folder / "vae")


def _save_model(model: Any, folder: Path) -> None:
    """Writes a model or pipeline of diffusers. The folder appears when it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    model.save_pretrained(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _save(parts: Mapping[str, Any], file: Path) -> None:
    torch.save(parts, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


# ---- text encoder and UNet


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer of whole words; a word in capitals becomes its letters."""
    words = ["a", "an", "one", *prompts.NUMBERS.values(), *prompts.COLOURS, *prompts.SHAPES]
    words += [f"{shape}s" for shape in prompts.SHAPES] + ["and", "with", "to", "the", "word", "letters", "in"]
    words += sorted({word for relation in prompts.RELATIONS for word in relation.split()})
    vocabulary = {word: n for n, word in enumerate([*_SPECIAL, *prompts.LETTERS, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[a-z]+|[A-Z]"), "removed", invert=True)
    ends = [(name, vocabulary[name]) for name in ("<start>", "<end>")]
    tokenizer.post_processor = processors.TemplateProcessing("<start> $A <end>", special_tokens=ends)
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), _SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


class Denoiser(torch.nn.Module):
    """The text encoder and the UNet."""

    def __init__(self, text_encoder: CLIPTextModel, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.text_encoder, self.unet = text_encoder, unet

    def forward(self, noisy: torch.Tensor, sigma: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the velocity, noise − latents, of ``noisy`` = (1 − σ) · latents + σ · noise.

        The method is flow matching (Lipman et al. 2023, arXiv 2210.02747).

        Args:
            noisy: latents, (N, 8, 12, 12).
            sigma: the share of noise in each, from 0 to 1, (N,).
            tokens: of the prompts, (N, 16).
        """
        # the cache of converted weights would outlive a CUDA graph
        with torch.autocast(noisy.device.type, torch.bfloat16, cache_enabled=False):
            context = self.text_encoder(tokens).last_hidden_state
            return self.unet(noisy, sigma * 1000, context, return_dict=False)[0]


class Training:
    """The training of text encoder and UNet."""

    def __init__(
        self, configuration: Mapping[str, Any], folder: Path, device: torch.device, log: Log
    ) -> None:
        self._configuration, self._folder, self._device, self._log = configuration, folder, device, log
        self._seed = configuration["seed"]
        torch.manual_seed(self._seed)
        self._vae = AutoencoderTiny.from_pretrained(folder / "vae").to(device).eval()
        self._tokenizer = new_tokenizer()
        text = configuration["text_encoder"]
        self._tokenizer.model_max_length = text["max_position_embeddings"]
        pad, start, end, _ = range(len(_SPECIAL))
        ids = {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": end}
        text_encoder = CLIPTextModel(CLIPTextConfig(vocab_size=len(self._tokenizer), **text, **ids))
        channels = configuration["autoencoder"]["latent_channels"]
        unet = UNet2DConditionModel(**configuration["unet"], in_channels=channels, out_channels=channels)
        if device.type == "cpu":
            # in bfloat16 this is several times faster than the default, the fused attention of torch
            unet.set_attn_processor(AttnProcessor())
        self._denoiser = Denoiser(text_encoder, unet).to(device).train()
        self.parameters = [*self._denoiser.parameters()]
        self._average = [p.detach().clone() for p in self.parameters]
        self._optimizer = torch.optim.AdamW(self.parameters, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        self.step = 0
        self._latents, self._tokens = self._scenes()
        self._empty = self._tokens_of([""])[0].to(device)
        state = folder / "state.pt"
        if state.is_file():
            saved = torch.load(state, map_location=device)
            self.step = saved["step"]
            self._optimizer.load_state_dict(saved["optimizer"])
            for kept, values in ((self.parameters, "parameters"), (self._average, "average")):
                for parameter, value in zip(kept, saved[values], strict=True):
                    parameter.data.copy_(value)
        self._velocity: Any = self._denoiser
        if device.type == "cuda":
            # launching the kernels one by one takes longer than running them
            example = self._batch()[:3]
            self._velocity = torch.cuda.make_graphed_callables(self._denoiser, example)

    def _scenes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns latents and tokens of all scenes, which are drawn once."""
        files = [self._folder / f"{name}.npy" for name in ("latents", "tokens")]
        if not files[1].is_file():
            latents, texts, count = list[np.ndarray](), list[str](), self._configuration["scenes"]
            began = time.time()
            for pixels, some in drawn(f"{self._seed} diffusion", count, self._configuration["mixture"]):
                texts += some
                for at in range(0, len(pixels), 64):
                    inputs = as_input(torch.from_numpy(pixels[at : at + 64]).to(self._device))
                    with torch.no_grad():
                        encoded = self._vae.encoder(inputs) * self._vae.config.scaling_factor
                    latents.append(encoded.half().cpu().numpy())
                if len(texts) % (16 * _PART) == 0:
                    left = (time.time() - began) / len(texts) * (count - len(texts)) / 60
                    self._log(stage="scenes", scenes=len(texts), **{"minutes left": round(left, 1)})
            np.save(files[0], np.concatenate(latents))
            latents.clear()
            # the last file, and complete when it appears: it says that both are there
            part = self._folder / "tokens.part.npy"
            np.save(part, self._tokens_of(texts).numpy())
            part.replace(files[1])
        latents, tokens = (torch.from_numpy(np.load(file)).to(self._device) for file in files)
        return latents, tokens

    def _tokens_of(self, texts: Sequence[str]) -> torch.Tensor:
        padding = {"padding": "max_length", "truncation": True}
        return self._tokenizer([*texts], return_tensors="pt", **padding).input_ids

    def run(self) -> None:
        """Trains until the last step, and saves the pipelines of the configuration's checkpoints."""
        settings = self._configuration["diffusion"]
        steps, batch = settings["steps"], settings["batch"]
        pace, losses = Pace(self.step), list[torch.Tensor]()
        saved = time.time()
        while self.step < steps:
            losses.append(self.one_step())
            if self.step % _LOG_STEPS == 0:
                loss = torch.stack(losses).mean().item()
                self._log(stage="diffusion", step=self.step, loss=loss, **pace(self.step, steps, batch))
                losses = []
            is_last = self.step == steps
            if self.step in self._configuration["checkpoints"] or is_last:
                _save_model(self.pipeline().to(torch.float16), self._folder / f"step-{self.step}")
                self._log(stage="score", step=self.step, **self.scores())
            # last: a training that goes on from this state does not come to the checkpoint again
            if time.time() - saved > _SAVE_SECONDS or is_last:
                self.save()
                saved = time.time()

    def one_step(self) -> torch.Tensor:
        """Trains with the next batch, and returns its loss."""
        settings = self._configuration["diffusion"]
        noisy, sigma, tokens, velocity = self._batch()
        loss = (self._velocity(noisy, sigma, tokens).float() - velocity).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        left = (settings["steps"] - self.step) / settings["decay"]
        rate = settings["learning_rate"] * min(1, (self.step + 1) / settings["warmup"], left)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.step += 1
        share_of_new = 1 - min(settings["ema"], (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._average, [p.detach() for p in self.parameters], share_of_new)
        return loss.detach()

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the step's noisy latents, shares of noise, tokens and velocities."""
        settings, device = self._configuration["diffusion"], self._device
        generator = generator_of(device, self._seed, 2, self.step)
        random: dict[str, Any] = {"generator": generator, "device": device}
        chosen = torch.randint(len(self._latents), (settings["batch"],), **random)
        latents = self._latents[chosen].float()
        noise = torch.randn(latents.shape, **random)
        # times near the middle are the hardest and come more often (Esser et al. 2024, arXiv 2403.03206)
        sigma = torch.randn(len(latents), **random).sigmoid()
        empty = torch.rand(len(latents), **random) < settings["no_prompt"]
        tokens = torch.where(empty[:, None], self._empty, self._tokens[chosen])
        return torch.lerp(latents, noise, sigma[:, None, None, None]), sigma, tokens, noise - latents

    def save(self) -> None:
        """Writes weights, average, optimizer and step, from which a later process goes on."""
        parts = {
            "step": self.step,
            "parameters": [p.detach() for p in self.parameters],
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
        }
        _save(parts, self._folder / "state.pt")

    def pipeline(self) -> StableDiffusionPipeline:
        """Returns the pipeline with the averaged weights."""
        text_encoder = CLIPTextModel(self._denoiser.text_encoder.config)
        unet = UNet2DConditionModel.from_config(self._denoiser.unet.config)
        with torch.no_grad():
            for p, value in zip([*text_encoder.parameters(), *unet.parameters()], self._average, strict=True):
                p.copy_(value)
        scheduler = DPMSolverMultistepScheduler(
            use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=1.0
        )
        vae = AutoencoderTiny.from_pretrained(self._folder / "vae")
        pipeline = StableDiffusionPipeline(
            vae, text_encoder, self._tokenizer, unet, scheduler, None, None, requires_safety_checker=False
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def scores(self) -> dict[str, Any]:
        """Returns the share of right images among the benchmark's prompts, by category, without words."""
        records = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
        pipeline, found = self.pipeline().to(self._device), dict[str, list[bool]]()
        began = time.time()
        images = list[Any]()
        with torch.no_grad():
            for at in range(0, len(records), 32):
                some = records[at : at + 32]
                generators = [torch.Generator().manual_seed(42 + at + n) for n in range(len(some))]
                texts = [record["prompt"] for record in some]
                images += pipeline(texts, generator=generators, **self._configuration["sampling"]).images
        sheet = scenes.Image.new("RGB", (12 * scenes.SIZE, 8 * scenes.SIZE))
        for n, (record, image) in enumerate(zip(records, images, strict=True)):
            sheet.paste(image, (n % 12 * scenes.SIZE, n // 12 * scenes.SIZE))
            request = prompts.request_of(record)
            if not request.word:
                found.setdefault(request.category, []).append(
                    not prompts.problem_of(request, objects_in(image))
                )
        sheet.save(self._folder / f"samples-{self.step:06d}.png")
        scores = {name: sum(right) / len(right) for name, right in found.items()}
        return {"mean": sum(scores.values()) / len(scores), **scores, "seconds": time.time() - began}


if __name__ == "__main__":
    main()
