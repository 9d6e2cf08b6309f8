"""A transformer language model over bytes, small enough for four ranks on two cores."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["ByteTransformer", "write_on"]

BYTES = 256


class Block(nn.Module):
    """Causal self-attention and a two-layer network, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape in and out: [rows, positions, width]."""
        rows, positions, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(rows, positions, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended: torch.Tensor = x + self.project(mixed.transpose(1, 2).reshape(rows, positions, width))
        seen: torch.Tensor = attended + self.mlp(self.norm_mlp(attended))
        return seen


class ByteTransformer(nn.Module):
    """Predicts the next byte of a text; its only loss is the cross entropy in nats for each byte."""

    def __init__(self, *, context: int = 64, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.context = context
        self.token, self.position = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the byte after each position: [rows, positions] -> [rows, positions, 256]."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


@torch.no_grad()
def write_on(model: ByteTransformer, prompt: str, length: int, *, seed: int) -> str:
    """The prompt and `length` bytes that the model finds likely after it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(list(prompt.encode()))
    for _ in range(length):
        logits = model(tokens[None, -model.context :])[0, -1]
        chosen = torch.multinomial(torch.softmax(logits / 0.7, dim=0), 1, generator=generator)
        tokens = torch.cat((tokens, chosen))
    return bytes(tokens.tolist()).decode(errors="replace")
