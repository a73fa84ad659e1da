"""Gated DeltaNet (arXiv 2412.06464) for modeling_cplm.py: a recurrent layer whose state is one matrix a
head, and its cache of fixed size.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization
from transformers.cache_utils import Cache, DynamicLayer

from .configuration_cplm import CplmConfig
from .layers_cplm import rms, wide

CHUNK = 64  # positions that are computed at once


@dataclass
class LinearContext:
    """What a linear layer heeds of a batch."""

    padding: torch.Tensor | None  # [B, T] of the new positions: 0 is padding
    documents: torch.Tensor | None  # [B, T]: number of the packed sequence


# ---- the cache --------------------------------------------------------------------------------------
class DeltaLayer(DynamicLayer):
    """The states [B, H, K, U] and the last inputs of the short convolutions [B, J - 1, W]. While the past
    is recorded, also what stood before the first of the rows since the last crop(), and these rows:
    crop() goes through those that stay once more."""

    is_croppable = False  # unless the past is recorded
    supports_early_init = False

    def __init__(self, **kwargs):
        super().__init__()
        self.state = self.tail = None
        self.length = 0
        self.record_past = False
        self.base = None  # (state, tail) before the recorded rows
        self.rows = None  # inputs, k, v, log_decay, beta of the recorded rows

    def activate_past_recording(self):
        self.record_past = True

    def remember(self, inputs, parts, state, taps: int):
        if self.record_past:
            rows = (inputs, *parts)
            if self.rows is None:
                self.base, self.rows = (self.state, self.tail), rows
            else:
                self.rows = tuple(torch.cat(pair, dim=1) for pair in zip(self.rows, rows))
        self.tail = last_inputs(self.tail, inputs, taps)
        self.state = state
        self.length += inputs.shape[1]
        self.is_initialized = True

    def crop(self, tokens_to_remove: int) -> None:
        if not self.record_past:
            raise RuntimeError("crop() needs activate_past_recording() before: a state cannot be divided")
        removed = abs(tokens_to_remove)
        if removed > 0:
            inputs, k, v, log_decay, beta = (x[:, : x.shape[1] - removed] for x in self.rows)
            taps = self.tail.shape[1] + 1
            self.state, self.tail = self.base
            self.length -= removed
            if inputs.shape[1] > 0:
                _, self.state = delta_rule(k, k, v, log_decay, beta, None, self.state)
                self.tail = last_inputs(self.tail, inputs, taps)
        self.base = self.rows = None

    def update(self, key_states, value_states, *args, **kwargs):
        raise RuntimeError("a linear layer has no keys and values")

    def get_seq_length(self) -> int:
        return self.length

    def _each(self, change):
        if self.state is not None:
            self.state, self.tail = change(self.state), change(self.tail)
            self.base = self.rows = None

    def reset(self) -> None:
        self.state = self.tail = self.base = self.rows = None
        self.length = 0
        self.is_initialized = False

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._each(lambda x: x[indices, ...])

    def offload(self):
        self._each(lambda x: x.to("cpu", non_blocking=True))

    def prefetch(self):
        pass  # moved where it is needed


def last_inputs(tail: torch.Tensor | None, inputs: torch.Tensor, taps: int) -> torch.Tensor:
    if tail is None:
        tail = inputs.new_zeros(inputs.shape[0], taps - 1, inputs.shape[2])
    rows = torch.cat([tail, inputs], dim=1)
    return rows[:, rows.shape[1] - (taps - 1) :]


def own_linear_layers(cache: Cache, config: CplmConfig):
    """Puts our layers where transformers has its own, which keep no length and cannot go back."""
    for index, kind in enumerate(config.layer_types):
        while len(cache.layers) <= index and cache.layer_class_to_replicate is not None:
            cache.layers.append(cache.layer_class_to_replicate())
        if kind == "linear_attention" and not isinstance(cache.layers[index], DeltaLayer):
            cache.layers[index] = DeltaLayer()


# ---- the layer --------------------------------------------------------------------------------------
def short_conv(inputs, weight, past, documents) -> torch.Tensor:
    """silu of each channel's sum over its last J positions; inputs [B, T, W], weight [W, 1, J]."""
    taps, length = weight.shape[2], inputs.shape[1]
    if past is None:
        past = inputs.new_zeros(inputs.shape[0], taps - 1, inputs.shape[2])
    rows, weight = wide(torch.cat([past, inputs], dim=1)), wide(weight)
    total = torch.zeros_like(rows[:, taps - 1 :])
    for tap in range(taps):
        seen, back = rows[:, tap : tap + length], taps - 1 - tap
        if documents is not None and back > 0:
            same = torch.zeros_like(documents, dtype=torch.bool)
            same[:, back:] = documents[:, back:] == documents[:, :-back]
            seen = seen * same[..., None]
        total = total + seen * weight[:, 0, tap]
    return nn.functional.silu(total).to(inputs.dtype)


def chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, T, H, ...] -> [B, H, N, size, ...], zeros behind T."""
    missing = -x.shape[1] % size
    if missing:
        x = torch.cat([x, x.new_zeros(x.shape[0], missing, *x.shape[2:])], dim=1)
    return x.unflatten(1, (-1, size)).movedim(3, 1)


def unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def decays(log_decay, documents, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each chunk: what position i still sees of j, [.., C, C], and of the state before it, [.., C]."""
    total = chunks(log_decay, size).double().cumsum(-1)
    hidden = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    into = total.exp()
    if documents is not None:
        # Numbers from 1; behind T as the last, so that the last state is not lost.
        missing = -documents.shape[1] % size
        padded = torch.cat([documents, documents[:, -1:].expand(-1, missing)], dim=1) + 1
        own = padded.unflatten(1, (-1, size))[:, None]  # [B, 1, N, C]
        before = torch.cat([torch.zeros_like(own[:, :, :1, -1]), own[:, :, :-1, -1]], dim=2)
        hidden = hidden | (own[..., :, None] != own[..., None, :])
        into = into * (own == before[..., None])
    between = (total[..., :, None] - total[..., None, :]).masked_fill(hidden, -math.inf)
    return between.exp().to(wide(log_decay).dtype), into.to(wide(log_decay).dtype)


def delta_rule(q, k, v, log_decay, beta, documents, state) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, T, H, K], v [B, T, H, U], log_decay, beta [B, T, H] -> [B, T, H, U] and the last state:
    S <- e^log_decay S;  S <- S + k (beta (v - S^T k))^T;  out = S^T q, in chunks."""
    length, dtype, size = q.shape[1], v.dtype, min(CHUNK, q.shape[1])
    q = chunks(unit(wide(q)) * q.shape[-1] ** -0.5, size)
    k, v, beta = chunks(unit(wide(k)), size), chunks(wide(v), size), chunks(beta, size)[..., None]
    decay, into = decays(log_decay, documents, size)
    into = into[..., None]
    system = ((k @ k.mT) * decay).tril(-1) * beta
    known = torch.cat([beta * v, beta * into * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    writes, reads = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    weights, kept = (q @ k.mT) * decay, (decay[..., -1, :, None] * k).mT
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    out = []
    for n in range(k.shape[2]):
        written = writes[:, :, n] - reads[:, :, n] @ state
        out.append((into * q)[:, :, n] @ state + weights[:, :, n] @ written)
        state = into[:, :, n, -1:] * state + kept[:, :, n] @ written
    return torch.cat(out, dim=2).transpose(1, 2)[:, :length].to(dtype), state


class CplmHeadRMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor, eps: float) -> torch.Tensor:
        return rms(x, eps) * wide(self.weight)


class CplmGatedDelta(nn.Module):
    def __init__(self, config: CplmConfig, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.heads, self.eps = config.linear_num_heads, config.rms_norm_eps
        self.key_dim, self.value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.taps = config.linear_conv_kernel_dim
        self.strength = 2.0 if config.linear_allow_neg_eigval else 1.0
        width, keys, values = config.hidden_size, self.heads * self.key_dim, self.heads * self.value_dim
        for name, size in {
            "q": keys,
            "k": keys,
            "v": values,
            "g": values,
            "a": self.heads,
            "b": self.heads,
        }.items():
            setattr(self, f"{name}_proj", nn.Linear(width, size, bias=False))
        for name, size in {"q": keys, "k": keys, "v": values}.items():
            setattr(self, f"{name}_conv1d", nn.Conv1d(size, size, self.taps, groups=size, bias=False))
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(torch.zeros(self.heads))
        self.o_norm = CplmHeadRMSNorm(self.value_dim)
        self.o_proj = nn.Linear(values, width, bias=False)

    @torch.no_grad()
    def init_decay(self):
        rate = torch.empty_like(self.A_log).uniform_(0, 16).clamp(min=1e-4)
        step = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(0.1)).exp()
        initialization.copy_(self.A_log, rate.log())
        initialization.copy_(self.dt_bias, step + torch.log(-torch.expm1(-step)))

    def _heads(self, mixed: torch.Tensor):
        keys = self.heads * self.key_dim
        q, k, v = mixed.split([keys, keys, self.heads * self.value_dim], dim=-1)
        return (part.unflatten(-1, (self.heads, -1)) for part in (q, k, v))

    def forward(self, x, angles, context: LinearContext, past_key_values: Cache | None, **kwargs):
        if context.padding is not None:
            x = x * context.padding[..., None].to(x.dtype)
        inputs = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        weight = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        log_decay = -wide(self.A_log).exp() * nn.functional.softplus(
            wide(self.a_proj(x)) + wide(self.dt_bias)
        )
        beta = wide(self.b_proj(x)).sigmoid() * self.strength
        layer = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        tail, state = (None, None) if layer is None else (layer.tail, layer.state)
        q, k, v = self._heads(short_conv(inputs, weight, tail, context.documents))
        out, state = delta_rule(q, k, v, log_decay, beta, context.documents, state)
        if layer is not None:
            layer.remember(inputs, (k, v, log_decay, beta), state, self.taps)
        gate = wide(self.g_proj(x)).unflatten(-1, (self.heads, -1))
        y = self.o_norm(wide(out), self.eps) * nn.functional.silu(gate)
        return self.o_proj(y.flatten(2).to(x.dtype)), None
