"""Checkpoints of golden files, and what our program and transformers make of them."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CPLM_BUILD_DIR", ROOT / "build/release"))
GOLDEN = sorted((ROOT / "tests/golden").glob("*.safetensors"))

torch = pytest.importorskip("torch", reason="needs scripts/setup --reference")
if not hasattr(torch, "nn"):
    pytest.skip("the lean LibTorch cannot be imported by Python", allow_module_level=True)
transformers = pytest.importorskip("transformers", reason="needs scripts/setup --reference")
safetensors = pytest.importorskip("safetensors.torch", reason="needs scripts/setup --reference")
from safetensors import safe_open  # noqa: E402

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # tiny tensors: threads would only spin
MODEL_KEYS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size "
    "rope_theta rms_norm_eps tie_word_embeddings head"
).split()


def cplm(*arguments, expect=0):
    """Runs the program; returns what it logged."""
    run = subprocess.run([BUILD / "cplm", *map(str, arguments)], capture_output=True, text=True)
    assert run.returncode == expect, run.stdout + run.stderr
    return run.stdout + run.stderr


def golden_settings(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["config"])


def backbone_of(settings):
    if settings["sliding_window"] == 0:
        return "full"
    return "hybrid" if settings["full_attention_every"] else "sliding"


def config_text(settings, more=""):
    model = {key: settings[key] for key in MODEL_KEYS}
    model["rope_theta"] = float(model["rope_theta"])
    model["backbone"] = backbone_of(settings)
    model["sliding_window"] = settings["sliding_window"] or 1
    model["full_attention_every"] = settings["full_attention_every"] or 1
    model["copy"] = {key: settings[key] for key in ("stop_gradient", "include_current")}
    lines = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in model.items())
    return f"""model:
{lines}
{more}
data: {{train: [x], sequence_length: 64}}
train: {{steps: 1, batch_tokens: 64}}
"""


def checkpoint_of(golden, folder, more="", dtype=torch.float64):
    """A folder with the golden file's weights that the program takes as a CHECKPOINT."""
    settings, tensors = golden_settings(golden), safetensors.load_file(golden)
    folder.mkdir(parents=True)
    names = ("model.", "lm_head.", "copy_token.", "cp_head.")
    weights = {name: x.to(dtype) for name, x in tensors.items() if name.startswith(names)}
    safetensors.save_file(weights, folder / "model.safetensors")
    (folder / "config.yaml").write_text(config_text(settings, more))
    return settings, tensors


def load(folder, **arguments):
    """The folder as transformers sees it, with nothing missing and nothing left over."""
    arguments.setdefault("trust_remote_code", True)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **arguments
    )
    assert not any(report.values()), report
    return model.eval()


def our_scores(checkpoint, ids, targets, folder, dtype="float64", distributions=False):
    """log P of the targets, and P(v) in each mode, by our program."""
    source, result = folder / "scores-in.safetensors", folder / "scores-out.safetensors"
    safetensors.save_file({"ids": ids.clone(), "targets": targets.clone()}, source)
    command = [BUILD / "tests/score_model", checkpoint, dtype, source, result]
    run = subprocess.run(command + ["distributions"] * distributions, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return safetensors.load_file(result)
