"""A tiny pair trained on needle texts with a byte-level tokenizer, and greedy decoding by PyTorch."""

import json
import subprocess
import sys

from eval_support import log_probs
from hf_support import ROOT, cplm, torch
from tokenizers import Tokenizer


def train_text_pair(folder, heads=("cplm", "vanilla"), steps=40):
    """folder/{cplm,vanilla}: runs of some steps on folder/data, with its tokenizer.json."""
    cplm("data", "make", "needle", "--output", folder / "texts.jsonl", "--documents", 300, "--sentences", "0:6")
    prepare = [sys.executable, ROOT / "scripts/prepare_data.py", "--input", folder / "texts.jsonl"]
    prepare += ["--train-tokenizer", "400", "--output", folder / "data"]
    subprocess.run(prepare, check=True, capture_output=True)
    for head in heads:
        (folder / f"{head}.yaml").write_text(f"""
run: {{name: {head}, dir: {folder / head}, seed: 3}}
model:
  vocab_size: 400
  hidden_size: 32
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  intermediate_size: 48
  backbone: sliding
  sliding_window: 9
  initializer_range: 0.2
  head: {head}
data: {{train: ['{folder}/data/train/*.h5'], validation: ['{folder}/data/validation/*.h5'], sequence_length: 64}}
train: {{steps: {steps}, batch_tokens: 1024, micro_batch: 16, device: cpu, precision: float32, threads: 1}}
optimizer: {{lr: 1.0e-2}}
schedule: {{warmup_steps: 5}}
checkpoint: {{every: 0}}
""")
        cplm("train", folder / f"{head}.yaml")
    return folder


def tokenizer_of(folder):
    return Tokenizer.from_file(str(folder / "data/tokenizer.json"))


def greedy_answer(model, tokenizer, prompt, new_tokens):
    """The text that the model's likeliest tokens make, up to an end of document."""
    eos = tokenizer.token_to_id("<|endoftext|>")
    ids = tokenizer.encode(prompt).ids
    answer = []
    while len(answer) < new_tokens:
        chosen = int(log_probs(model, torch.tensor([ids + answer]))[0, -1].argmax())
        if chosen == eos:
            break
        answer.append(chosen)
    return tokenizer.decode(answer)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
