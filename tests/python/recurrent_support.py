"""Random recurrent models made by our Python code for transformers, as checkpoints of the program."""

import json
import sys
from pathlib import Path

from hf_support import ROOT, safetensors, torch

sys.path.insert(0, str(ROOT / "scripts"))
from hugging_face.configuration_cplm import CplmConfig  # noqa: E402
from hugging_face.modeling_cplm import CplmForCausalLM  # noqa: E402

VOCABULARY, WIDTH, LAYERS = 61, 24, 3
BACKBONES = {
    "recurrent": ["linear_attention"] * LAYERS,
    "mixed": ["linear_attention", "sliding_attention", "full_attention"],
}
MORE = {
    "recurrent": {},
    "mixed": {"linear_num_heads": 3, "linear_conv_kernel_dim": 2, "linear_allow_neg_eigval": True},
}


def random_model(backbone: str, head: str, **changes):
    """In float64; every weight is large enough to be seen."""
    config = CplmConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=40, layer_types=BACKBONES[backbone], sliding_window=9,
        head=head, **(MORE[backbone] | changes))
    generator = torch.Generator().manual_seed(3)
    model = CplmForCausalLM(config).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            around = 1.0 if "norm" in name else 0.0
            weight.copy_(around + 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return model.eval()


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def model_section(model) -> str:
    config = model.config
    names = {"linear_conv_kernel_dim": "linear_conv_kernel"}
    keys = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
        "tie_word_embeddings head layer_types sliding_window linear_num_heads linear_key_head_dim "
        "linear_value_head_dim linear_conv_kernel_dim linear_allow_neg_eigval"
    ).split()
    return ", ".join(f"{names.get(key, key)}: {json.dumps(getattr(config, key))}" for key in keys)


def checkpoint_of_model(model, folder: Path):
    folder.mkdir(parents=True)
    safetensors.save_file(weights_of(model), folder / "model.safetensors")
    (folder / "config.yaml").write_text(
        f"model: {{{model_section(model)}}}\n"
        "data: {train: [x], sequence_length: 64}\ntrain: {steps: 1, batch_tokens: 64}\n")
