"""Byte level: with fewer tokens than the hidden state has numbers, the LM head loses no gradient, and the
Copy-Paste head should gain nothing. The same backbone and text, as bytes and as tokens."""

import math
import subprocess
import sys
from pathlib import Path

from studies.command import ROOT, aligned
from studies.errors import StudyError
from studies.rows import interval_text, mark, new_rows
from studies.study import Study, check_config_file

BYTES = 257  # 256 and the end of document
HEADS = ("vanilla", "cplm")


def _shards(study: Study, given, name: str, vocab_size: int) -> Path:
    folder = study.out / "data" / name
    if not (folder / "manifest.json").exists():
        study.say(f"{name}: shards of {vocab_size} tokens")
        command = [
            sys.executable, ROOT / "scripts/prepare_data.py", "--input", *given.text, "--output", folder,
            "--train-tokenizer", str(vocab_size), "--workers", "1",
        ]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            lines = made.stderr.strip().splitlines() or ["no message"]
            raise StudyError(lines[-1], made.returncode)
    return folder


def _measure(study: Study, given, name: str, vocab_size: int, length: int) -> dict:
    data = _shards(study, given, name, vocab_size)
    runs = []
    for head in HEADS:
        overrides = {
            "model.vocab_size": vocab_size,
            "data.train": f"['{data}/train/*.h5']",
            "data.validation": f"['{data}/validation/*.h5']",
            "data.sequence_length": length,
            "run.seed": given.seed,
            **dict(given.overrides),
            "model.head": head,
        }
        runs.append(study.train(f"{name}-{head}", given.config, overrides))
    threads = dict(given.overrides).get("train.threads", 0)
    told = study.evaluate("perplexity", name, *runs, "--sequences", given.sequences, "--threads", threads)
    vanilla, cplm = told["subjects"]
    # From nats a token to bits a byte of the text that the targets stand for.
    scale = told["data"]["counted_tokens"] / told["data"]["bytes"] / math.log(2)
    difference = cplm["difference"]
    natural = {head: subject["modes"]["natural"] for head, subject in zip(HEADS, (vanilla, cplm))}
    result = {
        "level": name, "vocab_size": vocab_size, "sequence_length": length,
        "loss": {head: float(mode["loss"]) for head, mode in natural.items()},
        "bits_per_byte": {head: float(mode["bits_per_byte"]) for head, mode in natural.items()},
        "gain_bits_per_byte": -difference["mean"] * scale,
        "copy_weight": cplm["copy_weight"],
    }  # fmt: skip
    if "low" in difference:
        result["gain_low"], result["gain_high"] = -difference["high"] * scale, -difference["low"] * scale
    return result


def _interval(level: dict) -> tuple[float, float] | None:
    return (level["gain_low"], level["gain_high"]) if "gain_low" in level else None


def _table(levels: list[dict]) -> str:
    rows = [["level", "V", "T", "vanilla bits/byte", "cplm bits/byte", "gain (95 %)", "copied"]]
    for level in levels:
        rows.append([
            level["level"], level["vocab_size"], level["sequence_length"],
            *(f"{level['bits_per_byte'][head]:.4f}" for head in HEADS),
            interval_text(level["gain_bits_per_byte"], _interval(level)), f"{level['copy_weight']:.3f}",
        ])  # fmt: skip
    return aligned(rows)


def draw(results: dict):
    levels = results["levels"]
    names = [f"{level['level']} (V = {level['vocab_size']:,})" for level in levels]
    figure, axes = new_rows(names, 2.2 + 0.7 * len(levels), "bits a byte that the Copy-Paste head gains")
    for row, level in enumerate(levels):
        gain, interval = level["gain_bits_per_byte"], _interval(level)
        color = mark(axes, row, gain, f"{gain:+.4f}")
        if interval:
            axes.plot(interval, [row, row], color=color, zorder=2)
    axes.axvline(0, color="#808080", linewidth=1)
    return figure


def run(given, program: Path) -> None:
    settings = {
        "text": given.text, "config": str(given.config), "tokens": given.tokens,
        "lengths": [given.byte_length, given.token_length],
        "sequences": given.sequences, "seed": given.seed, "set": given.overrides,
    }  # fmt: skip
    check_config_file(given.config)
    study = Study("bytes", given.out, settings, program, (given.config,))
    levels = [_measure(study, given, "bytes", BYTES, given.byte_length)]
    if given.tokens > 0:
        levels.append(_measure(study, given, "tokens", given.tokens, given.token_length))
    study.finish({"format": "cplm-study-bytes-1", "settings": settings, "levels": levels}, _table(levels), draw)
