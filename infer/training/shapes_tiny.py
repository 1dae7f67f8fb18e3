"""Trains shapes-tiny: ``python -m infer.training.shapes_tiny FOLDER``. Run it again to continue after an interruption.

It trains an autoencoder on scenes that it draws, then a text encoder and a UNet on the scenes' latents, by flow
matching. All classes are those of diffusers and transformers, so each folder ``FOLDER/step-N`` is a pipeline that
diffusers loads. ``FOLDER/log.jsonl`` holds losses and scores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
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

HERE = Path(__file__).resolve().parent
PROMPTS = HERE.parents[1] / "benchmarks" / "quickshapes" / "prompts.jsonl"
_SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")
_LOG_STEPS, _SCORE_STEPS, _SAVE_SECONDS = 50, 1000, 300


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where checkpoints, latents and the log go")
    parser.add_argument("--configuration", type=Path, default=HERE / "shapes_tiny.json")
    parser.add_argument("--processes", type=int, default=2, help="processes of one thread each (default: 2)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OMP_NUM_THREADS": "1"}
    configuration = json.loads(given.configuration.read_text(encoding="utf-8"))
    meeting = f"file://{(given.folder / f'.meeting-{os.getpid()}').resolve()}"
    torch.multiprocessing.spawn(
        _process, (given.processes, meeting, given.folder, configuration), nprocs=given.processes
    )


def _process(rank: int, processes: int, meeting: str, folder: Path, configuration: Mapping[str, Any]) -> None:
    """One of several processes that share each batch and average their gradients.

    Under load this is faster than threads, which wait for each other at every operation.
    """
    torch.set_num_threads(1)
    # the others wait while the first process draws scenes or makes samples
    hours = timedelta(hours=6)
    dist.init_process_group("gloo", init_method=meeting, timeout=hours, rank=rank, world_size=processes)
    log = Log(folder / "log.jsonl", silent=rank > 0)
    if not (folder / "vae" / "config.json").is_file():
        train_autoencoder(configuration, folder, log)
    Training(configuration, folder, log).run()
    dist.destroy_process_group()


class Log:
    """Says records and appends them to a file."""

    def __init__(self, file: Path, silent: bool) -> None:
        self._file, self._silent, self._began = file, silent, time.time()

    def __call__(self, **record: Any) -> None:
        if self._silent:
            return
        record["time"] = time.strftime("%Y-%m-%d %H:%M:%S")
        line = json.dumps({name: round(v, 5) if isinstance(v, float) else v for name, v in record.items()})
        say(line)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Pace:
    """Images per second and the time left, since the last question."""

    def __init__(self, step: int) -> None:
        self.step, self._time = step, time.time()

    def __call__(self, step: int, steps: int, batch: int) -> dict[str, Any]:
        seconds, done = time.time() - self._time, step - self.step
        self.step, self._time = step, time.time()
        return {
            "images/s": round(done * batch / seconds, 1),
            "hours left": round((steps - step) * seconds / done / 3600, 2),
        }


def generator_of(*numbers: int) -> torch.Generator:
    """Returns a generator that depends on the numbers only, so that a continued training draws the same."""
    return torch.Generator().manual_seed(
        int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
    )


def average_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Averages the gradients over all processes."""
    flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    at = 0
    for p in parameters:
        if p.grad is not None:
            p.grad.copy_(flat[at : at + p.grad.numel()].view_as(p.grad))
            at += p.grad.numel()


def mine(batch: torch.Tensor) -> torch.Tensor:
    """Returns the part of a batch that belongs to this process."""
    return batch[dist.get_rank() :: dist.get_world_size()]


def requests(seed: str, count: int, mixture: Mapping[str, float]) -> Iterator[tuple[prompts.Request, Random]]:
    """Yields random requests, none of which the benchmark makes."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    held_out = {prompts.request_of(json.loads(line)).key() for line in lines}
    random = Random(seed)
    for _ in range(count):
        (category,) = random.choices([*mixture], [*mixture.values()])
        request = prompts.random_request(random, category)
        while request.key() in held_out:
            request = prompts.random_request(random, category)
        yield request, random


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


def train_autoencoder(configuration: Mapping[str, Any], folder: Path, log: Log) -> None:
    """Trains the autoencoder on pieces of scenes around their edges, and saves it as ``vae``.

    Latents get a little noise, so that the decoder forgives the errors of the diffusion.
    """
    settings, seed = configuration["autoencoder"], configuration["seed"]
    torch.manual_seed(seed)
    vae = new_autoencoder(settings)
    optimizer = torch.optim.AdamW(vae.parameters(), betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    drawn = requests(f"{seed} autoencoder", settings["scenes"], configuration["mixture"])
    images = torch.from_numpy(np.stack([np.asarray(scenes.draw(*one)) for one in drawn])).permute(0, 3, 1, 2)
    edges = [_edges(image) for image in images]
    state, step = folder / "autoencoder.pt", 0
    if state.is_file():
        saved = torch.load(state)
        step = saved["step"]
        vae.load_state_dict(saved["vae"])
        optimizer.load_state_dict(saved["optimizer"])
    steps, batch, crop = settings["steps"], settings["batch"], settings["crop"]
    pace, losses = Pace(step), []
    while step < steps:
        generator = generator_of(seed, 1, step)
        chosen = mine(torch.randint(len(images), (batch,), generator=generator)).tolist()
        jitter = mine(torch.randint(-crop // 3, crop // 3 + 1, (batch, 2), generator=generator))
        pick = mine(torch.rand(batch, generator=generator))
        pieces = []
        for number, (dy, dx), share in zip(chosen, jitter.tolist(), pick.tolist(), strict=True):
            y, x = edges[number][int(share * len(edges[number]))].tolist()
            top, left = (min(max(c - crop // 2 + d, 0), scenes.SIZE - crop) for c, d in ((y, dy), (x, dx)))
            pieces.append(images[number, :, top : top + crop, left : left + crop])
        pixels = torch.stack(pieces).float() / 255
        with torch.autocast("cpu", torch.bfloat16):
            latents = vae.encoder(pixels * 2 - 1).float()
            decoded = vae.decoder(latents + 0.1 * torch.randn(latents.shape, generator=generator)).float()
        errors = (decoded + 1) / 2 - pixels
        deviation, mean = torch.std_mean(latents, (0, 2, 3))
        unlike_noise = ((deviation - 1) ** 2 + mean**2).mean()
        loss = errors.abs().mean() + 4 * errors.square().mean() + 0.01 * unlike_noise
        optimizer.zero_grad()
        loss.backward()
        average_gradients([*vae.parameters()])
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings["learning_rate"] * min(1, step / 100) * (1.02 - step / steps) ** 0.7
        optimizer.step()
        step += 1
        losses.append(errors.detach().square().mean().item())
        if step % (4 * _LOG_STEPS) == 0:
            psnr = -10 * math.log10(sum(losses) / len(losses))
            log(stage="autoencoder", step=step, steps=steps, psnr=psnr, **pace(step, steps, batch))
            losses = []
            if dist.get_rank() == 0:
                parts = {"step": step, "vae": vae.state_dict(), "optimizer": optimizer.state_dict()}
                _save(parts, state)
    with torch.no_grad():
        spread = vae.encoder(images[:512].float() / 127.5 - 1).std().item()
    vae.register_to_config(scaling_factor=1 / spread)
    if dist.get_rank() == 0:
        vae.save_pretrained(folder / "vae")
    dist.barrier()


def _edges(image: torch.Tensor) -> torch.Tensor:
    """Returns the places (y, x) that differ from their neighbours."""
    level = image.int()
    across = (level[:, :-1, 1:] - level[:, :-1, :-1]).abs().sum(0)
    down = (level[:, 1:, :-1] - level[:, :-1, :-1]).abs().sum(0)
    return (across + down > 60).nonzero().to(torch.uint8)


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


class Training:
    """The training of text encoder and UNet."""

    def __init__(self, configuration: Mapping[str, Any], folder: Path, log: Log) -> None:
        self._configuration, self._folder, self._log = configuration, folder, log
        self._seed = configuration["seed"]
        torch.manual_seed(self._seed)
        self._vae = AutoencoderTiny.from_pretrained(folder / "vae").eval()
        self._tokenizer = new_tokenizer()
        text = configuration["text_encoder"]
        self._tokenizer.model_max_length = self._length = text["max_position_embeddings"]
        pad, start, end, _ = range(len(_SPECIAL))
        ids = {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": end}
        self._text_encoder = CLIPTextModel(CLIPTextConfig(vocab_size=len(self._tokenizer), **text, **ids))
        channels = configuration["autoencoder"]["latent_channels"]
        self._unet = UNet2DConditionModel(
            **configuration["unet"], in_channels=channels, out_channels=channels
        )
        # in bfloat16 this is several times faster than the default, the fused attention of torch
        self._unet.set_attn_processor(AttnProcessor())
        self.parameters = [*self._unet.parameters(), *self._text_encoder.parameters()]
        self._average = [p.detach().clone() for p in self.parameters]
        self._optimizer = torch.optim.AdamW(self.parameters, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        self.step = 0
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        state = folder / "state.pt"
        if state.is_file():
            saved = torch.load(state)
            self.step = saved["step"]
            self._optimizer.load_state_dict(saved["optimizer"])
            for kept, values in ((self.parameters, "parameters"), (self._average, "average")):
                for parameter, value in zip(kept, saved[values], strict=True):
                    parameter.data.copy_(value)

    def run(self) -> None:
        """Trains until the last step, and saves the pipelines of the configuration's checkpoints."""
        settings = self._configuration["diffusion"]
        steps, batch = settings["steps"], settings["batch"]
        pace, losses = Pace(self.step), list[float]()
        saved = time.time()
        while self.step < steps:
            losses.append(self.one_step(settings))
            if self.step % _LOG_STEPS == 0:
                loss = torch.tensor(sum(losses) / len(losses))
                dist.all_reduce(loss)
                loss /= dist.get_world_size()
                self._log(
                    stage="diffusion", step=self.step, loss=loss.item(), **pace(self.step, steps, batch)
                )
                losses = []
            if dist.get_rank() > 0:
                continue
            is_last = self.step == steps
            if time.time() - saved > _SAVE_SECONDS or is_last:
                self.save()
                saved = time.time()
            if self.step in self._configuration["checkpoints"] or is_last:
                self.pipeline().to(torch.float16).save_pretrained(self._folder / f"step-{self.step}")
            if self.step in self._configuration["checkpoints"] or self.step % _SCORE_STEPS == 0 or is_last:
                self._log(stage="score", step=self.step, **self.scores())

    def one_step(self, settings: Mapping[str, Any]) -> float:
        """Trains with the next batch, and returns the loss of this process's part."""
        latents, tokens = self._batch(settings["batch"])
        generator = generator_of(self._seed, 3, self.step)
        noise = torch.randn(latents.shape, generator=generator)
        # times near the middle are the hardest and come more often
        sigma = torch.randn(len(latents), generator=generator).sigmoid()
        empty = torch.rand(len(latents), generator=generator) < settings["no_prompt"]
        tokens = torch.where(empty[:, None], self._tokens([""])[0], tokens)
        latents, noise, sigma, tokens = map(mine, (latents, noise, sigma, tokens))
        share = sigma[:, None, None, None]
        with torch.autocast("cpu", torch.bfloat16):
            context = self._text_encoder(tokens).last_hidden_state
            noisy = (1 - share) * latents + share * noise
            velocity = self._unet(noisy, sigma * 1000, context, return_dict=False)[0].float()
        loss = (velocity - (noise - latents)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        average_gradients(self.parameters)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        left = (settings["steps"] - self.step) / settings["decay"]
        rate = settings["learning_rate"] * min(1, (self.step + 1) / settings["warmup"], left)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.step += 1
        share_of_new = 1 - min(settings["ema"], (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._average, [p.detach() for p in self.parameters], share_of_new)
        return loss.item()

    def _batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns latents and tokens of a random batch. The scenes become more while training goes on."""
        due = 1 + self.step // self._configuration["steps_per_chunk"]
        while len(self._chunks) < min(due, self._configuration["chunks"]):
            self._chunks.append(self._chunk(len(self._chunks)))
        generator = generator_of(self._seed, 2, self.step)
        size_of_chunk = self._configuration["chunk"]
        places = torch.randint(size_of_chunk * len(self._chunks), (size,), generator=generator).tolist()
        found = [(self._chunks[n // size_of_chunk], n % size_of_chunk) for n in places]
        latents = np.stack([chunk[0][n] for chunk, n in found]).astype(np.float32)
        tokens = np.stack([chunk[1][n] for chunk, n in found])
        return torch.from_numpy(latents), torch.from_numpy(tokens)

    def _chunk(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns latents and tokens of some thousand scenes, which the first process draws once."""
        folder = self._folder / "chunks"
        files = [folder / f"{number:03d}-{name}.npy" for name in ("latents", "tokens")]
        if dist.get_rank() == 0 and not files[1].is_file():
            folder.mkdir(exist_ok=True)
            count, mixture = self._configuration["chunk"], self._configuration["mixture"]
            drawn, texts = list[torch.Tensor](), list[str]()
            batch = list[np.ndarray]()
            for request, random in requests(f"{self._seed} {number}", count, mixture):
                texts.append(prompts.prompt_of(request, random))
                batch.append(np.asarray(scenes.draw(request, random)))
                if len(batch) == 64 or len(texts) == count:
                    pixels = torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2).float() / 127.5 - 1
                    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                        drawn.append(self._vae.encoder(pixels).float() * self._vae.config.scaling_factor)
                    batch = []
            np.save(files[0], torch.cat(drawn).half().numpy())
            np.save(files[1], self._tokens(texts).numpy())
        dist.barrier()
        latents, tokens = (np.load(file, mmap_mode="r") for file in files)
        return latents, tokens

    def _tokens(self, texts: Sequence[str]) -> torch.Tensor:
        padding = {"padding": "max_length", "truncation": True, "max_length": self._length}
        return self._tokenizer([*texts], return_tensors="pt", **padding).input_ids

    def save(self) -> None:
        """Writes all that a later process needs to go on as if nothing had happened."""
        parts = {
            "step": self.step,
            "parameters": [p.detach() for p in self.parameters],
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
        }
        _save(parts, self._folder / "state.pt")

    def pipeline(self) -> StableDiffusionPipeline:
        """Returns the pipeline with the averaged weights."""
        unet = UNet2DConditionModel.from_config(self._unet.config)
        text_encoder = CLIPTextModel(self._text_encoder.config)
        with torch.no_grad():
            for p, value in zip([*unet.parameters(), *text_encoder.parameters()], self._average, strict=True):
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
        pipeline, found = self.pipeline(), dict[str, list[bool]]()
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
