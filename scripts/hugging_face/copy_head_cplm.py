"""The Copy-Paste head of modeling_cplm.py: its scores over the context, its cache, and the mixture of
its distribution with the LM head's, in log space.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicLayer

from .configuration_cplm import CplmConfig
from .layers_cplm import RotaryEmbedding, rms, rotate, wide


# ---- the copy cache ---------------------------------------------------------------------------------
class CopyLayer(DynamicLayer):
    """One more layer of the cache: the copy keys [B, 1, T, D] and, as its values, the token ids
    [B, 1, T, 1]. Beam search reorders it and assisted generation crops it as any other."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self.values = torch.tensor([], dtype=value_states.dtype, device=value_states.device)


def add_copy_layer(cache: Cache, num_layers: int):
    """Appends the copy head's layer to a cache made for `num_layers` decoder layers."""
    if len(cache.layers) > num_layers:
        return
    while len(cache.layers) < num_layers and cache.layer_class_to_replicate is not None:
        cache.layers.append(cache.layer_class_to_replicate())
    if len(cache.layers) != num_layers or not all(isinstance(x, DynamicLayer) for x in cache.layers):
        raise ValueError(
            f"past_key_values: expected a DynamicCache of {num_layers} layers, found {cache}; copying "
            "needs the key of every position, which other caches cannot keep"
        )
    if cache.get_seq_length() > 0:
        raise ValueError(
            "past_key_values: holds positions without copy keys; fill it by this model from the start"
        )
    cache.layers.append(CopyLayer())


# ---- the Copy-Paste head ----------------------------------------------------------------------------
class CopyToken(nn.Module):
    """The row of the LM head for <copy>, which is never an input token."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))


class CopyPasteHead(nn.Module):
    """Attention of width D over the positions seen so far, without values, and a sink."""

    def __init__(self, config: CplmConfig):
        super().__init__()
        width = config.hidden_size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.sink = nn.Parameter(torch.zeros(width))
        self.scale = width**-0.5
        self.norm_eps = config.rms_norm_eps if config.copy_qk_norm else None
        self.rope = RotaryEmbedding(width, config.rope_theta) if config.copy_rope else None

    def _project(self, projection: nn.Linear, h: torch.Tensor) -> torch.Tensor:
        x = projection(h)
        return x if self.norm_eps is None else rms(x, self.norm_eps).to(x.dtype)

    def keys(self, h: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """[B, T, D] -> [B, T, D]"""
        keys = self._project(self.k_proj, h)
        return keys if self.rope is None else rotate(keys, *self.rope(position_ids))

    def scores(self, h, position_ids, keys, allowed) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows h [B, R, D] against keys [B, S, D]: a [B, R, S], -inf where not allowed, and a_sink [B, R]."""
        query = self._project(self.q_proj, h)
        sink = wide(query) @ wide(self.sink) * self.scale
        if self.rope is not None:
            query = rotate(query, *self.rope(position_ids))
        context = wide(query) @ wide(keys).transpose(1, 2) * self.scale
        return context.masked_fill(~allowed, -math.inf), sink


def log_copied(scores: torch.Tensor, ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """log of sum over the positions of token v of exp(a_i), [B, R, V]; -inf where there is none."""
    top = scores.amax(-1, keepdim=True).detach()
    weights = (scores - top).exp()
    mass = weights.new_zeros(*scores.shape[:2], vocab_size)
    mass = mass.scatter_add(2, ids.unsqueeze(1).expand_as(scores), weights)
    present = mass > 0  # log(0) would turn a gradient of 0 into NaN
    return torch.where(present, torch.where(present, mass, 1.0).log() + top, -math.inf)


def log_mixture(logits, copy_logit, scores, sink, ids, mode: str) -> torch.Tensor:
    """log P of rows: logits [B, R, V], copy_logit and sink [B, R], scores [B, R, S], ids [B, S]."""
    log_lm = logits.log_softmax(-1)
    if mode == "no_copy":
        return log_lm
    # A row without context (its scores are all -inf) leaves everything to the LM head.
    empty = scores.eq(-math.inf).all(-1, keepdim=True)
    safe = torch.where(empty, 0.0, scores)
    log_context = safe.logsumexp(-1)
    copied = log_copied(safe, ids, logits.shape[-1])
    if mode == "force_copy":
        return torch.where(empty, log_lm, copied - log_context.unsqueeze(-1))
    log_vocab = logits.logsumexp(-1)
    log_both = torch.logaddexp(log_vocab, copy_logit)
    log_attended = torch.logaddexp(log_context, sink)
    log_gate = copy_logit - log_both
    log_kept = torch.logaddexp(log_vocab - log_both, log_gate + sink - log_attended)
    mixed = torch.logaddexp(
        log_lm + log_kept.unsqueeze(-1), copied + (log_gate - log_attended).unsqueeze(-1)
    )
    return torch.where(empty, log_lm, mixed)


@dataclass
class CopyContext:
    """What the rows of a pass may copy from."""

    keys: torch.Tensor  # [B, S, D], of all positions so far
    ids: torch.Tensor  # [B, S]
    past: int  # positions that the cache held before
    position_ids: torch.Tensor  # [B or 1, T], of the new ones
    attention_mask: torch.Tensor | None  # [B, S]: 0 is padding
    documents: torch.Tensor | None  # [B, S]: number of the packed sequence
