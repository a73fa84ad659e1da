"""scripts/study_*.py at tiny sizes: their arms, their numbers against the runs', and going on."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from studies.command import aligned
from studies.stop_gradient import fractions
from studies.study import config_sha256
from training_files import BINARY, ROOT, metrics

needs_program = pytest.mark.skipif(not BINARY.exists(), reason="needs the program, built")


def study(name, *arguments, expect=0, cwd=None, program=BINARY):
    command = [sys.executable, ROOT / "scripts" / f"study_{name}.py", *map(str, arguments)]
    command += ["--program", str(program)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300)
    assert run.returncode == expect, run.stdout + run.stderr
    return run.stdout if expect == 0 else run.stderr.strip().splitlines()[-1]


SPAMLANG = (
    "--widths", "16", "--vocabularies", "5,6", "--lr", "1e-2", "--steps", "4", "--length", "8", "--samples", "8",
    "--set", "train.threads=1",
)  # fmt: skip


@needs_program
def test_spamlang_trains_measures_and_goes_on(tmp_path):
    out = tmp_path / "out"
    table = study("spamlang", "--out", out, *SPAMLANG)
    told = json.loads((out / "spamlang.json").read_text())
    cells = told["cells"]
    assert [(c["vocabulary"], c["head"]) for c in cells] == [
        (v, head) for v in (32, 64) for head in ("vanilla", "cplm")
    ]
    for cell in cells:
        [run] = cell["runs"]
        assert cell["best"] == run
        assert f" {run['validation']['natural']:.4f} " in table
        evaluated = json.loads((out / "evaluations" / run["arm"] / "spamlang.json").read_text())
        assert evaluated["subjects"][0]["splits"]["held_out"]["greedy"] == run["held_out"]["greedy"]
        config = (out / "runs" / run["arm"] / "config.yaml").read_text()
        assert f"head: {cell['head']}" in config and f"vocab_size: {cell['vocabulary']}" in config
    for kind in ("png", "svg"):
        assert (out / f"spamlang.{kind}").stat().st_size > 0
    weights = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/checkpoints/*/model.safetensors")}
    assert len(weights) == 4
    before = (out / "spamlang.json").read_bytes()
    study("spamlang", "--out", out, *SPAMLANG)
    assert (out / "spamlang.json").read_bytes() == before
    assert weights == {path: path.stat().st_mtime_ns for path in weights}, "nothing is trained twice"
    error = study("spamlang", "--out", out, *SPAMLANG, "--steps", 5, expect=2)
    assert "steps: 4 -> 5" in error


CONFIG = """
run: {{name: tiny, dir: {folder}/tiny}}
model: {{vocab_size: 64, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
        intermediate_size: 16}}
data: {{train: ['{folder}/data/train/*.h5'], validation: ['{folder}/data/validation/*.h5'], sequence_length: 32}}
train: {{steps: 12, batch_tokens: 256, micro_batch: 8, device: cpu, precision: float32, threads: 1}}
optimizer: {{lr: 2.0e-2}}
checkpoint: {{every: 0}}
"""


@needs_program
def test_stop_gradient_tells_the_fraction_kept(tmp_path):
    subprocess.run(
        [BINARY, "data", "make", "repeat", "--output", tmp_path / "data", "--vocab-size", "64", "--first-symbol",
         "1", "--sequence-length", "32", "--repeat-length", "4:8", "--samples", "200", "--validation-samples", "20"],
        check=True, capture_output=True,
    )  # fmt: skip
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    out = tmp_path / "out"
    study("stop_gradient", "--out", out, "--config", config, "--seeds", "1,2", "--set", "optimizer.lr=1e-2")
    told = json.loads((out / "stop_gradient.json").read_text())
    arms = {arm["arm"]: arm for arm in told["arms"]}

    def final(arm, seed):
        lines = metrics(out / "runs" / f"{arm}-{seed}", "validation")
        return lines[max(lines)]["loss"]

    for seed in (0, 1):
        vanilla, cplm, cut = (final(arm, seed + 1) for arm in ("vanilla", "cplm", "scores"))
        assert arms["cplm"]["by_seed"][seed] == cplm
        expected = (vanilla - cut) / (vanilla - cplm) if vanilla > cplm else None
        assert arms["scores"]["kept_by_seed"][seed] == (
            pytest.approx(expected) if expected is not None else None
        )
    assert "stop_gradient: scores_and_gate" in (out / "runs/scores-and-gate-2/config.yaml").read_text()
    difference = arms["cplm"]["difference"]
    mean = sum(c - v for c, v in zip(arms["cplm"]["by_seed"], arms["vanilla"]["by_seed"])) / 2
    assert difference["mean"] == pytest.approx(mean, rel=1e-6)
    config.write_text(config.read_text().replace("steps: 12", "steps: 13"))
    error = study("stop_gradient", "--out", out, "--config", config, "--seeds", "1,2", "--set", "optimizer.lr=1e-2", expect=2)
    assert "was made with other settings (configs:" in error


def test_a_configs_hash_covers_what_it_includes(tmp_path):
    for name, text in (("a", "include: [b.yaml, c.yaml]  # two\n"), ("b", "include: c.yaml\n"), ("c", "model: {}\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    before = config_sha256(tmp_path / "a.yaml")
    assert before == config_sha256(tmp_path / "a.yaml") != config_sha256(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("model: {head: cplm}\n")
    assert config_sha256(tmp_path / "a.yaml") != before


def test_fractions_of_no_gain_are_unknown():
    losses = {
        "vanilla-1": 3.0,
        "cplm-1": 2.0,
        "scores-1": 2.75,
        "vanilla-2": 3.0,
        "cplm-2": 3.5,
        "scores-2": 3.0,
    }
    kept = fractions(losses, [1, 2], "scores")
    assert kept[0] == 0.25
    assert math.isnan(kept[1])


@needs_program
def test_bytes_and_tokens(tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(12):
        draw = random.Random(number)
        syllables = [
            "".join(draw.choice(letters) for letters in ("bdfgklmnprst", "aeiou"))
            for _ in range(40)
        ]
        words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(80)]
        (text / f"{number}.txt").write_text(" ".join(words))
    out = tmp_path / "out"
    table = study(
        "bytes", "--out", out, "--text", text / "*.txt", "--tokens", 300, "--byte-length", 64, "--token-length",
        32, "--sequences", 0, "--set", "train.steps=3", "--set", "train.batch_tokens=256", "--set",
        "train.threads=1", "--set", "validation.every=0",
    )  # fmt: skip
    told = json.loads((out / "bytes.json").read_text())
    assert [(level["level"], level["vocab_size"]) for level in told["levels"]] == [
        ("bytes", 257),
        ("tokens", 300),
    ]
    for level in told["levels"]:
        bits = level["bits_per_byte"]
        assert level["gain_bits_per_byte"] == pytest.approx(
            bits["vanilla"] - bits["cplm"], rel=1e-6, abs=1e-9
        )
        assert level["gain_low"] <= level["gain_bits_per_byte"] <= level["gain_high"]
        assert f"{bits['cplm']:.4f}" in table


def stub(tmp_path, text):
    path = tmp_path / "cplm"
    path.write_text('#!/bin/sh\n[ "$1" != --version ] || { echo cplm 0; exit; }\n' + text)
    path.chmod(0o755)
    return path


def test_errors_are_one_line(tmp_path):
    def error(*arguments, program=BINARY, expect=2):
        return study("spamlang", "--out", tmp_path / "out", *arguments, program=program, expect=expect)

    assert "not there; build the program" in error(program=tmp_path / "none")
    assert "multiples of 16" in error("--widths", 17)
    assert "expected whole numbers 4 to 20" in error("--vocabularies", "8,x")
    assert "expected learning rates" in error("--lr", 0)
    assert "expected KEY=VALUE" in error("--set", "train.steps")
    assert "the study itself sets model.head" in error("--set", "model.head=cplm")
    failing = stub(tmp_path, "echo note >&2; echo 'error: disk full' >&2; exit 1")
    assert "cplm data: disk full" in error(program=failing, expect=1)
    assert "no such file" in study("bytes", "--config", tmp_path / "none.yaml", expect=2, program=failing)


def test_a_stopped_program_ends_the_study_with_75(tmp_path):
    stopped = stub(tmp_path, "exit 75")
    assert "the same command goes on" in study(
        "spamlang", "--out", tmp_path / "a", expect=75, program=stopped
    )
    # A signal to the study reaches the program, which ends in its own time.
    slow = stub(
        tmp_path,
        f"trap 'touch {tmp_path}/told; exit 75' TERM; touch {tmp_path}/runs; while :; do sleep 0.1; done",
    )
    command = [sys.executable, ROOT / "scripts/study_spamlang.py", "--out", tmp_path / "b", "--program", slow]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "runs").exists():
        assert running.poll() is None
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGTERM)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 75, told
    assert (tmp_path / "told").exists()


def test_two_studies_do_not_share_a_folder(tmp_path):
    slow = stub(tmp_path, f"touch {tmp_path}/runs; exec sleep 60")
    command = [
        sys.executable,
        ROOT / "scripts/study_spamlang.py",
        "--out",
        tmp_path / "out",
        "--program",
        slow,
    ]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "runs").exists():
            assert running.poll() is None
            time.sleep(0.05)
        error = study("spamlang", "--out", tmp_path / "out", program=slow, expect=1)
        assert "another process works there" in error
    finally:
        running.terminate()
        running.wait(timeout=60)


def test_tables_align():
    text = aligned([["arm", "loss"], ["a", "1.25"], ["long name", None]])
    assert text == "arm        loss\n---------  ----\na          1.25\nlong name     -"
