"""A tiny trained pair for tests of `cplm eval`, and its models as transformers sees them."""

import json
import subprocess

from hf_support import BUILD, cplm, load, torch

DOCUMENT_TOKENS = 40


def train_heads(folder, heads, model, data, train, overrides=()):
    """folder/HEAD for each of `heads`: a tiny run on folder/data, seconds long. `model`, `data` and
    `train`: the fields, as YAML, that tests choose."""
    for head in heads:
        (folder / f"{head}.yaml").write_text(f"""
run: {{name: {head}, dir: {folder / head}, seed: 3}}
model:
  hidden_size: 32
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  intermediate_size: 48
  initializer_range: 0.2
  head: {head}
  {model}
data:
  train: ['{folder}/data/train/*.h5']
  validation: ['{folder}/data/validation/*.h5']
  {data}
train: {{micro_batch: 16, device: cpu, precision: float32, threads: 1, {train}}}
optimizer: {{lr: 1.0e-2}}
schedule: {{warmup_steps: 5}}
checkpoint: {{every: 0}}
""")
        arguments = [word for text in overrides for word in ("--set", text)]
        cplm("train", folder / f"{head}.yaml", *arguments)
    return folder


def train_pair(folder, overrides=(), heads=("cplm", "vanilla")):
    """folder/{cplm,vanilla}: runs of some steps on folder/data, which repeats itself."""
    cplm(
        "data", "make", "repeat", "--output", folder / "data", "--vocab-size", 64, "--first-symbol", 1,
        "--sequence-length", 33, "--repeat-length", "4:12", "--samples", 400,
    )  # fmt: skip
    model = """vocab_size: 64
  backbone: hybrid
  sliding_window: 6
  full_attention_every: 2"""
    return train_heads(
        folder, heads, model, "sequence_length: 32", "steps: 60, batch_tokens: 512", overrides
    )


def exported(folder, head):
    """The run's model in transformers, float64."""
    target = folder / f"{head}-hf"
    if not target.exists():
        cplm("export", folder / head, target)
    return load(target).double()


def evaluate(task, *arguments, expect=0):
    """Runs `cplm eval TASK` in float64; returns what it printed."""
    command = [BUILD / "cplm", "eval", task, *map(str, arguments), "--precision", "float64"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == expect, run.stdout + run.stderr
    return run.stdout if expect == 0 else run.stderr


def results(task, folder, *arguments):
    """What `cplm eval TASK --out folder` writes as JSON."""
    evaluate(task, *arguments, "--out", folder)
    for kind in ("csv", "png", "svg"):
        assert (folder / f"{task}.{kind}").stat().st_size > 0
    return json.loads((folder / f"{task}.json").read_text())


def log_probs(model, ids):
    """log P of each next token, [B, T, V], float64; ids int64 [B, T]."""
    with torch.no_grad():
        return torch.log_softmax(model(ids).logits, -1)
