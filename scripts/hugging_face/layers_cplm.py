"""The parts of modeling_cplm.py's decoder layers: RMSNorm, rotary positions, attention to everything or to a
sliding window, SwiGLU.
"""

import math
from collections.abc import Callable

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_cplm import CplmConfig


def wide(x: torch.Tensor) -> torch.Tensor:
    """At least float32: norms, scores and probabilities are never computed in less."""
    return x if x.dtype == torch.float64 else x.float()


# ---- rotary position embedding ----------------------------------------------------------------------
def rope_frequencies(width: int, theta: float, scaling: dict | None) -> tuple[list[float], float]:
    """Radians a position of each pair, and the factor of cos and sin (YaRN, arXiv 2309.00071)."""
    frequencies = [theta ** (-2 * pair / width) for pair in range(width // 2)]
    if scaling is None:
        return frequencies, 1.0
    factor, length = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair_of(turns: float) -> float:  # the pair that turns so often within the original context
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair_of(32)), 0), min(math.ceil(pair_of(1)), width - 1)
    if low == high:
        high += 0.001
    slowed = [min(max((pair - low) / (high - low), 0.0), 1.0) for pair in range(width // 2)]
    stretched = [f * (1 - ramp) + f / factor * ramp for f, ramp in zip(frequencies, slowed)]
    return stretched, 0.1 * math.log(factor) + 1.0


class RotaryEmbedding:
    """cos and sin of position_ids. No buffers: neither a cast of the model nor the meta device touch it."""

    def __init__(self, width: int, theta: float, scaling: dict | None = None):
        self.frequencies, self.factor = rope_frequencies(width, theta, scaling)

    def __call__(self, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        device = position_ids.device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        angles = position_ids[..., None] * torch.tensor(self.frequencies, dtype=dtype, device=device)
        return angles.cos() * self.factor, angles.sin() * self.factor


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., T, C]; cos and sin [..., T, C/2]: the halves of a head are the two coordinates."""
    first, second = wide(x).chunk(2, dim=-1)
    cos, sin = cos.to(first.dtype), sin.to(first.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


# ---- the backbone -----------------------------------------------------------------------------------
def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    x = wide(x)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


class CplmRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (rms(x, self.eps) * wide(self.weight)).to(x.dtype)


class CplmMLP(nn.Module):
    def __init__(self, config: CplmConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def eager_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = wide(query @ key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class CplmAttention(nn.Module):
    def __init__(self, config: CplmConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        slides = config.layer_types[layer_idx] == "sliding_attention"
        self.sliding_window = config.sliding_window if slides else None
        width, key_width = config.hidden_size, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, key_width, bias=False)
        self.v_proj = nn.Linear(width, key_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, angles, attention_mask, past_key_values: Cache | None, **kwargs):
        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

        cos, sin = (part.unsqueeze(1) for part in angles)
        query = rotate(heads(self.q_proj(x)), cos, sin)
        key, value = rotate(heads(self.k_proj(x)), cos, sin), heads(self.v_proj(x))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        mixed, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(mixed.reshape(*x.shape[:2], -1)), weights
