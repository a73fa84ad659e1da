"""`cplm check` under settings far from any sense: a plan, or one line and the exit code for it."""

import json
import random
import re
import subprocess

import pytest
from training_files import BINARY, ROOT

EXTREMES = ["0", "-1", "1", "2", "3", "7", "512", "16777215", "16777216", "1e15", "1000000000000000", "1e-38", "1e-300",
            "1e300", "null", "true", "none", "[]", "[1, 2]", "{}", "''", "~", "\"\\u00e9\""]
POWERS = [str(2**n) for n in (4, 8, 13, 20, 24)]
SIZES = ["model.vocab_size", "model.hidden_size", "model.intermediate_size", "model.num_hidden_layers",
         "model.sliding_window", "model.linear_key_head_dim", "data.sequence_length", "train.micro_batch"]


def check(*arguments, **options):
    return subprocess.run([BINARY, "check", *arguments], capture_output=True, text=True, **options)


def fields():
    table = check("--help").stdout
    return re.findall(r"^\| `([a-z_.]+)` \|", table, flags=re.MULTILINE)


def numbers_in(report):
    if isinstance(report, dict):
        report = list(report.values())
    if isinstance(report, list):
        return [number for part in report for number in numbers_in(part)]
    return [report] if isinstance(report, (int, float)) and not isinstance(report, bool) else []


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_or_one_line(tmp_path, seed):
    keys = fields()
    assert len(keys) > 60
    rng = random.Random(seed)
    planned = 0
    for _ in range(15):
        settings = [f"{key}={rng.choice(POWERS)}" for key in rng.sample(SIZES, 4)] + ["train.batch_tokens=1099511627776"]
        if rng.random() < 0.5:
            settings.append(f"{rng.choice(keys)}={rng.choice(EXTREMES)}")
        overrides = [part for setting in settings for part in ("--set", setting)]
        ran = check(ROOT / "configs/debug.yaml", "--json", *overrides, cwd=tmp_path)
        assert ran.returncode in (0, 2), (settings, ran.stderr)
        if ran.returncode:
            assert sum(line.startswith("error: ") for line in ran.stderr.splitlines()) == 1, (settings, ran.stderr)
        if ran.stdout:
            planned += 1
            assert all(number >= 0 for number in numbers_in(json.loads(ran.stdout))), (settings, ran.stdout)
    assert planned >= 3
