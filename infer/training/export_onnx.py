"""Writes the ONNX graphs of shapes-tiny without weights: ``python -m infer.training.export_onnx PIPELINE FOLDER``.

The graphs get their weights when they are loaded, from the pipeline's own safetensors
(``custom_models/model_utils/shapes_tiny.py``): all checkpoints share them, and diffusers and ONNX use the same weights.
It needs the package onnx, which nothing else here needs.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from diffusers import StableDiffusionPipeline


class _Text(torch.nn.Module):
    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        # the fused attention has no ONNX operator
        pipeline.text_encoder.set_attn_implementation("eager")
        self.text_encoder = pipeline.text_encoder

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.text_encoder(tokens).last_hidden_state


class _UNet(torch.nn.Module):
    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self.unet = pipeline.unet

    def forward(self, latents: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return self.unet(latents, time, context, return_dict=False)[0]


class _Decoder(torch.nn.Module):
    def __init__(self, pipeline: Any) -> None:
        super().__init__()
        self.vae = pipeline.vae

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return self.vae.decoder(latents)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipeline", help="a folder of shapes-tiny that diffusers loads")
    parser.add_argument("folder", type=Path, help="where the three graphs go")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    pipeline = StableDiffusionPipeline.from_pretrained(given.pipeline, torch_dtype=torch.float32)
    unet, length = pipeline.unet.config, pipeline.tokenizer.model_max_length
    latents = torch.zeros(2, unet.in_channels, unet.sample_size, unet.sample_size)
    context = torch.zeros(2, length, unet.cross_attention_dim)
    tokens = torch.zeros(2, length, dtype=torch.long)
    export(_Text(pipeline), {"tokens": tokens}, given.folder / "text_encoder.onnx")
    export(
        _UNet(pipeline),
        {"latents": latents, "time": torch.zeros(2), "context": context},
        given.folder / "unet.onnx",
    )
    export(_Decoder(pipeline), {"latents": latents}, given.folder / "vae.onnx")


def export(module: torch.nn.Module, inputs: dict[str, torch.Tensor], file: Path) -> None:
    """Writes the graph of a module whose weights are external data that does not exist."""
    # the exporter writes parameters of equal values only once
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    graph = io.BytesIO()
    torch.onnx.export(
        module.eval(),
        tuple(inputs.values()),
        graph,
        input_names=[*inputs],
        output_names=["output"],
        dynamic_axes={name: {0: "batch"} for name in (*inputs, "output")},
        opset_version=17,
        do_constant_folding=False,
        dynamo=False,
    )
    model = onnx.load_model_from_string(graph.getvalue())
    _remove_weights(model.graph.initializer)
    file.write_bytes(model.SerializeToString())


def _remove_weights(initializers: Sequence[Any]) -> None:
    for tensor in initializers:
        # "unet.conv_in.weight" is the weight "conv_in.weight" of the file in the folder unet
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value="weights")


if __name__ == "__main__":
    main()
