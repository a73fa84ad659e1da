"""A tiny pair trained on needle texts with a byte-level tokenizer, and greedy decoding by PyTorch."""

import json
import subprocess
import sys

from eval_support import log_probs, train_heads
from hf_support import ROOT, cplm, torch
from tokenizers import Tokenizer


def train_text_pair(folder, heads=("cplm", "vanilla"), steps=40):
    """folder/{cplm,vanilla}: runs of some steps on folder/data, with its tokenizer.json."""
    texts = folder / "texts.jsonl"
    cplm("data", "make", "needle", "--output", texts, "--documents", 300, "--sentences", "0:6")
    prepare = [sys.executable, ROOT / "scripts/prepare_data.py", "--input", texts]
    prepare += ["--train-tokenizer", "400", "--output", folder / "data"]
    subprocess.run(prepare, check=True, capture_output=True)
    model = """vocab_size: 400
  backbone: sliding
  sliding_window: 9"""
    return train_heads(
        folder, heads, model, "sequence_length: 64", f"steps: {steps}, batch_tokens: 1024"
    )


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
