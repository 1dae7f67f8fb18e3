"""OpenAI's CLIP image encoder in plain torch, with the names of its published checkpoints."""

from __future__ import annotations

from typing import Any


def openai_visual(
    *, width: int = 128, layers: int = 2, patch: int = 8, size: int = 32, projection: int = 24, seed: int = 0
) -> Any:
    """A module with random weights: images (batch, 3, ``size``, ``size``) to (batch, ``projection``).

    With its ``proj`` set to None it gives (batch, ``width``). Heads are 64 wide, as in all of OpenAI's.
    """
    import torch
    from torch import nn

    class QuickGelu(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * torch.sigmoid(1.702 * x)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attn = nn.MultiheadAttention(width, width // 64)
            self.mlp = nn.Sequential()
            self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
            self.mlp.add_module("gelu", QuickGelu())
            self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            normed = self.ln_1(x)
            x = x + self.attn(normed, normed, normed, need_weights=False)[0]
            return x + self.mlp(self.ln_2(x))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.resblocks = nn.Sequential(*[Block() for _ in range(layers)])

        def forward(self, x: Any) -> Any:
            return self.resblocks(x)

    class Visual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
            self.class_embedding = nn.Parameter(torch.randn(width) / 4)
            self.positional_embedding = nn.Parameter(torch.randn((size // patch) ** 2 + 1, width) / 4)
            self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
            self.transformer = Transformer()
            self.proj = nn.Parameter(torch.randn(width, projection))

        def forward(self, images: Any) -> Any:
            patches = self.conv1(images).flatten(2).transpose(1, 2)
            first = self.class_embedding.to(patches.dtype).expand(patches.shape[0], 1, width)
            x = torch.cat([first, patches], 1) + self.positional_embedding.to(patches.dtype)
            # its attention takes the sequence first
            x = self.transformer(self.ln_pre(x).transpose(0, 1)).transpose(0, 1)
            x = self.ln_post(x[:, 0])
            return x if self.proj is None else x @ self.proj

    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        visual = Visual()
        for name, tensor in visual.named_parameters():
            # the usual weights let all images look alike, and a mix-up of two layer norms or biases go unseen
            if name.endswith("bias") or "ln_" in name:
                nn.init.normal_(tensor, mean=float(not name.endswith("bias")), std=0.2)
            elif name.endswith("weight"):
                nn.init.normal_(tensor, std=2 * tensor[0].numel() ** -0.5)
    return visual.eval().requires_grad_(False)
