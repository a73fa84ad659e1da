"""20 optimizer steps of `cplm train` beside the same model in eager PyTorch, in float64.

One step of cplm makes the weights and Adam's moments that both go on from; PyTorch reads the same
windows in the order that docs/data-order.md defines, and computes gradients by autograd.
"""

import sys
from pathlib import Path

import pytest
from training_files import BINARY, make_walk_shard, metrics, train

torch = pytest.importorskip("torch", reason="needs scripts/setup --reference")
safetensors = pytest.importorskip("safetensors.torch", reason="needs scripts/setup --reference")
yaml = pytest.importorskip("yaml", reason="needs scripts/setup --reference")
if not hasattr(torch, "nn"):
    pytest.skip("the lean LibTorch cannot be imported by Python", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from eager.data_order import window_at  # noqa: E402
from eager.eager_cplm import EagerCplm, learning_rate, make_optimizer, shape_of, step  # noqa: E402

STEPS, LENGTH, ROWS, VOCABULARY = 20, 33, 6, 97


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "shard_00000.h5"
    return path, torch.from_numpy(make_walk_shard(path, VOCABULARY))


def config_text(shard, run_dir, backbone, head, tied):
    # At these weights a recurrent model's steps are chaotic: rounding grows tenfold a step at the
    # others' rate.
    rate = "1.0e-4" if backbone == "recurrent" else "3.0e-3"
    return f"""
run: {{name: parity, dir: "{run_dir}", seed: 11}}
model: {{vocab_size: {VOCABULARY}, hidden_size: 24, num_hidden_layers: 4, num_attention_heads: 6,
  num_key_value_heads: 2, intermediate_size: 40, backbone: {backbone}, sliding_window: 7, head: {head},
  initializer_range: 0.2, tie_word_embeddings: {str(tied).lower()}}}
data: {{train: ["{shard}"], sequence_length: {LENGTH}}}
train: {{steps: {STEPS + 1}, batch_tokens: {ROWS * LENGTH}, micro_batch: 4, device: cpu, precision: float64, threads: 1}}
optimizer: {{lr: {rate}, weight_decay: 0.1, grad_clip: 0.5}}
schedule: {{warmup_steps: 5, decay_fraction: 0.3}}
checkpoint: {{every: 0}}
log: {{every: 1}}
"""


def batch_of(tokens, seed, update):
    windows = (tokens.numel() - 1) // LENGTH
    rows = []
    for g in range((update - 1) * ROWS, update * ROWS):
        begin = window_at(seed, g // windows, g % windows, windows) * LENGTH
        rows.append(tokens[begin : begin + LENGTH + 1])
    batch = torch.stack(rows)
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def eager_from_checkpoint(run_dir, config):
    folder = run_dir / "checkpoints/step_0000000001"
    weights = safetensors.load_file(folder / "model.safetensors")
    moments = safetensors.load_file(folder / "optimizer.safetensors")
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    optimizer = make_optimizer(weights, config["optimizer"])
    for name, tensor in weights.items():
        optimizer.state[tensor] = {"step": torch.tensor(1.0), "exp_avg": moments["exp_avg." + name],
                                   "exp_avg_sq": moments["exp_avg_sq." + name]}
    return EagerCplm(shape_of(config), weights), optimizer


@pytest.mark.skipif(not BINARY.exists(), reason="needs the cplm program")
@pytest.mark.parametrize("head", ["vanilla", "cplm"])
@pytest.mark.parametrize(
    "backbone,tied",
    [("full", True), ("sliding", True), ("hybrid", True), ("full", False), ("recurrent", True)],
)
def test_twenty_steps_equal_eager_pytorch(tmp_path, shard, backbone, tied, head):
    path, tokens = shard
    run_dir, config_path = tmp_path / "run", tmp_path / "parity.yaml"
    config_path.write_text(config_text(path, run_dir, backbone, head, tied))
    train(config_path, "--stop-after", "1")
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    model, optimizer = eager_from_checkpoint(run_dir, config)
    train(config_path)

    records = metrics(run_dir, "train")
    for update in range(2, STEPS + 2):
        rate = learning_rate(config["schedule"], config["optimizer"]["lr"], STEPS + 1, update)
        ids, targets = batch_of(tokens, 11, update)
        loss, norm = step(model, optimizer, ids, targets, rate, config["optimizer"]["grad_clip"])
        assert records[update]["lr"] == pytest.approx(rate, rel=1e-14)
        assert records[update]["loss"] == pytest.approx(loss, abs=1e-9)
        assert records[update]["grad_norm"] == pytest.approx(norm, rel=1e-9)

    final = safetensors.load_file(run_dir / f"checkpoints/step_{STEPS + 1:010d}/model.safetensors")
    assert final.keys() == model.weights.keys()
    for name, tensor in final.items():
        error = (tensor - model.weights[name]).norm() / tensor.norm()
        assert error <= 1e-8, f"{name}: relative difference {error:.3g}"
