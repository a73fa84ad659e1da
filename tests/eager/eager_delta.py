"""Gated DeltaNet in eager PyTorch, one position after the other, from the equations alone."""

import torch
import torch.nn.functional as F


def short_conv(x, weight):
    """silu of each channel's sum over its last positions; x [B, T, W], weight [W, 1, J]."""
    taps = weight.shape[2]
    return F.silu(
        F.conv1d(F.pad(x.transpose(1, 2), (taps - 1, 0)), weight, groups=weight.shape[0])
    ).transpose(1, 2)


def delta_layer(shape, weights, prefix, x):
    s, heads = shape, shape.linear_num_heads

    def project(name):
        return F.linear(x, weights[f"{prefix}{name}_proj.weight"])

    def mixed(name):
        return short_conv(project(name), weights[f"{prefix}{name}_conv1d.weight"]).unflatten(-1, (heads, -1))

    def unit(y):
        return y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    q, k, v = unit(mixed("q")) / s.linear_key_head_dim**0.5, unit(mixed("k")), mixed("v")
    beta = project("b").sigmoid() * (2 if s.linear_allow_neg_eigval else 1)
    fade = (-weights[prefix + "A_log"].exp() * F.softplus(project("a") + weights[prefix + "dt_bias"])).exp()
    state, out = x.new_zeros(x.shape[0], heads, s.linear_key_head_dim, s.linear_value_head_dim), []
    for t in range(x.shape[1]):
        state = fade[:, t, :, None, None] * state
        missing = v[:, t] - torch.einsum("bhku,bhk->bhu", state, k[:, t])
        state = state + torch.einsum("bhk,bhu->bhku", k[:, t], beta[:, t, :, None] * missing)
        out.append(torch.einsum("bhku,bhk->bhu", state, q[:, t]))
    o = F.rms_norm(
        torch.stack(out, 1),
        (s.linear_value_head_dim,),
        weights[prefix + "o_norm.weight"],
        s.rms_norm_eps,
    )
    return F.linear(o.flatten(2) * F.silu(project("g")), weights[prefix + "o_proj.weight"])
