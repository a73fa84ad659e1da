"""Our backbones beside transformers' Llama (full) and Mistral (sliding): the loss of every window and
the gradient of every tensor, from weights that transformers made.

One update with exp_avg = (1 - beta1) * gradient tells the gradient. transformers computes RoPE and the
norms in float32 whatever the model's dtype, which bounds how near the two can be.
"""

import h5py
import pytest
from training_files import BINARY, make_walk_shard, train

torch = pytest.importorskip("torch", reason="needs scripts/setup --reference")
transformers = pytest.importorskip("transformers", reason="needs scripts/setup --reference")
safetensors = pytest.importorskip("safetensors.torch", reason="needs scripts/setup --reference")
if not hasattr(torch, "nn"):
    pytest.skip("the lean LibTorch cannot be imported by Python", allow_module_level=True)

VOCABULARY, WIDTH, LAYERS, MLP, WINDOW = 61, 24, 2, 40, 9


def reference_model(backbone, heads, key_heads, tied):
    names = {"full": ("LlamaConfig", "LlamaForCausalLM"), "sliding": ("MistralConfig", "MistralForCausalLM")}
    config_class, model_class = (getattr(transformers, name) for name in names[backbone])
    extra = {"sliding_window": WINDOW} if backbone == "sliding" else {}
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=MLP,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_theta=10000.0,
        attn_implementation="eager",
        initializer_range=0.2,
        head_dim=WIDTH // heads,
        **extra,
    )
    torch.manual_seed(5)
    return model_class(config).double()


def our_config(shard, folder, backbone, heads, key_heads, tied, length, rows):
    return f"""
run: {{name: parity, dir: "{folder / 'run'}", seed: 3}}
model: {{vocab_size: {VOCABULARY}, hidden_size: {WIDTH}, num_hidden_layers: {LAYERS}, num_attention_heads: {heads},
  num_key_value_heads: {key_heads}, intermediate_size: {MLP}, backbone: {backbone}, sliding_window: {WINDOW},
  head: vanilla, tie_word_embeddings: {str(tied).lower()}}}
data: {{train: ["{shard}"], validation: ["{shard}"], sequence_length: {length}}}
train: {{steps: 1, batch_tokens: {rows * length}, micro_batch: 2, device: cpu, precision: float64, threads: 1,
  init_from: "{folder / 'init'}"}}
optimizer: {{lr: 1.0e-30, grad_clip: 0.0, weight_decay: 0.0}}
validation: {{sequences: 5}}
"""


@pytest.mark.skipif(not BINARY.exists(), reason="needs the cplm program")
@pytest.mark.parametrize("length", [1, 31, 66])
@pytest.mark.parametrize("heads,key_heads,tied", [(4, 4, True), (4, 2, True), (4, 1, False), (6, 3, True)])
@pytest.mark.parametrize("backbone", ["full", "sliding"])
def test_backbone_equals_transformers(tmp_path, backbone, heads, key_heads, tied, length):
    shard = tmp_path / "shard.h5"
    # As many windows as one batch has sequences, so that the batch is the whole shard in some order.
    rows = 4
    tokens = torch.from_numpy(make_walk_shard(shard, VOCABULARY, rows * length + 1, rows * length + 1))
    model = reference_model(backbone, heads, key_heads, tied)
    (tmp_path / "init").mkdir()
    weights = {n: p.detach().clone().contiguous() for n, p in model.named_parameters()}
    safetensors.save_file(weights, tmp_path / "init/model.safetensors")
    config = tmp_path / "parity.yaml"
    config.write_text(our_config(shard, tmp_path, backbone, heads, key_heads, tied, length, rows))
    train(config)

    windows = torch.stack([tokens[j * length : (j + 1) * length + 1] for j in range(rows)])
    logits = model(windows[:, :-1]).logits
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none")
    losses.mean().backward()
    with h5py.File(tmp_path / "run/validation/step_1.h5") as file:
        assert file["loss_sum"][:] == pytest.approx(losses.sum(1).detach().numpy(), rel=1e-6)

    moments = safetensors.load_file(tmp_path / "run/checkpoints/step_0000000001/optimizer.safetensors")
    for name, parameter in model.named_parameters():
        ours = moments["exp_avg." + name] / 0.1
        error = (ours - parameter.grad).norm()
        assert error <= 1e-5 * parameter.grad.norm() + 1e-12, f"{name}: {error / parameter.grad.norm():.3g}"
