"""The whole CPLM in eager PyTorch, dense and plain: the independent half of parity and speed tests.

Written from the equations alone: a dense softmax over V + 1, dense T x T scores, autograd. It reads the
weights that `cplm` saves (Hugging Face names plus copy_token.weight and cp_head.*).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eager.eager_delta import delta_layer


@dataclass
class Shape:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    layer_types: list  # full_attention, sliding_attention or linear_attention, one a layer
    sliding_window: int
    head: str  # vanilla or cplm
    tie_word_embeddings: bool = True
    linear_num_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_allow_neg_eigval: bool = False

    @property
    def head_dim(self):
        return self.hidden_size // self.num_attention_heads


def shape_of(config):
    """Shape from a resolved config (the dict of a run's config.yaml)."""
    model = config["model"]
    layers = model["num_hidden_layers"]
    every = model["full_attention_every"]
    kinds = model.get("layer_types") or {
        "full": ["full_attention"] * layers,
        "recurrent": ["linear_attention"] * layers,
        "sliding": ["sliding_attention"] * layers,
        "hybrid": ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)],
    }[model["backbone"]]
    names = [f for f in Shape.__dataclass_fields__ if f != "layer_types"]
    return Shape(layer_types=kinds, **{name: model[name] for name in names})


def rope_tables(positions, head_dim, theta, dtype):
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class EagerCplm:
    """weights: name -> tensor with requires_grad."""

    def __init__(self, shape, weights):
        self.shape, self.weights = shape, weights
        self.cache = {}

    def tables(self, positions, dtype):
        key = (positions, dtype)
        if key not in self.cache:
            s = self.shape
            cos, sin = rope_tables(positions, s.head_dim, s.rope_theta, dtype)
            row, column = torch.arange(positions)[:, None], torch.arange(positions)
            causal = column <= row
            self.cache[key] = cos, sin, causal, causal & (column > row - s.sliding_window)
        return self.cache[key]

    def attention(self, x, prefix, kind):
        s, w = self.shape, self.weights
        batch, positions, _ = x.shape
        cos, sin, _, windowed = self.tables(positions, x.dtype)

        def heads(name, count):
            return F.linear(x, w[prefix + name]).view(batch, positions, count, s.head_dim).transpose(1, 2)

        q = rotate(heads("q_proj.weight", s.num_attention_heads), cos, sin)
        k = rotate(heads("k_proj.weight", s.num_key_value_heads), cos, sin)
        v = heads("v_proj.weight", s.num_key_value_heads)
        masked = {"attn_mask": windowed} if kind == "sliding_attention" else {"is_causal": True}
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **masked)
        return F.linear(out.transpose(1, 2).reshape(batch, positions, -1), w[prefix + "o_proj.weight"])

    def hidden(self, ids):
        s, w = self.shape, self.weights

        def norm(x, name):
            return F.rms_norm(x, (s.hidden_size,), w[name], s.rms_norm_eps)

        x = F.embedding(ids, w["model.embed_tokens.weight"])
        for i, kind in enumerate(s.layer_types):
            p = f"model.layers.{i}."
            n = norm(x, p + "input_layernorm.weight")
            if kind == "linear_attention":
                x = x + delta_layer(s, w, p + "linear_attn.", n)
            else:
                x = x + self.attention(n, p + "self_attn.", kind)
            n = norm(x, p + "post_attention_layernorm.weight")
            mlp = F.silu(F.linear(n, w[p + "mlp.gate_proj.weight"])) * F.linear(
                n, w[p + "mlp.up_proj.weight"]
            )
            x = x + F.linear(mlp, w[p + "mlp.down_proj.weight"])
        return norm(x, "model.norm.weight")

    def log_prob(self, ids, targets):
        """log P(target) of every position; targets are all real ids."""
        return self.head_log_prob(self.hidden(ids), ids, targets)

    def head_log_prob(self, h, ids, targets):
        s, w = self.shape, self.weights
        lm = w["model.embed_tokens.weight"] if s.tie_word_embeddings else w["lm_head.weight"]
        if s.head == "vanilla":
            return torch.log_softmax(F.linear(h, lm), dim=-1).gather(-1, targets[..., None]).squeeze(-1)
        logits = F.linear(h, torch.cat([lm, w["copy_token.weight"][None]]))
        log_z = torch.log_softmax(logits, dim=-1)
        z_y, c = log_z.gather(-1, targets[..., None]).squeeze(-1).exp(), log_z[..., -1].exp()
        q, k = F.linear(h, w["cp_head.q_proj.weight"]), F.linear(h, w["cp_head.k_proj.weight"])
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2)).masked_fill(~causal, -math.inf)
        scores = torch.cat([scores, (q @ w["cp_head.sink"])[..., None]], dim=-1) / math.sqrt(s.hidden_size)
        alpha = torch.softmax(scores, dim=-1)
        copied = (alpha[..., :-1] * (ids[:, None, :] == targets[:, :, None])).sum(-1)
        return torch.log(z_y + c * copied + c * alpha[..., -1] * z_y / (1 - c))

    def loss(self, ids, targets):
        return -self.log_prob(ids, targets).mean()


def learning_rate(schedule, peak, total_steps, update):
    """The WSD schedule with linear decay, from its definition."""
    decay = round(schedule["decay_fraction"] * total_steps)
    k = max(0, update - 1 - (total_steps - decay))
    rate = schedule["min_lr"] + (peak - schedule["min_lr"]) * (decay - k) / decay if decay else peak
    return min(rate, peak * update / schedule["warmup_steps"]) if update < schedule["warmup_steps"] else rate


def make_optimizer(weights, optimizer):
    return torch.optim.AdamW(list(weights.values()), lr=optimizer["lr"], betas=tuple(optimizer["betas"]),
                             eps=optimizer["eps"], weight_decay=optimizer["weight_decay"], fused=True)


def step(model, optimizer, ids, targets, rate, grad_clip, micro_batch=None):
    """One optimizer step over a whole batch; returns the mean loss and the norm before clipping."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    rows = micro_batch or ids.shape[0]
    for begin in range(0, ids.shape[0], rows):
        part = slice(begin, begin + rows)
        loss = model.loss(ids[part], targets[part]) * (ids[part].shape[0] / ids.shape[0])
        loss.backward()
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.weights.values(), grad_clip)
    optimizer.step()
    return total, norm.item()
