#!/usr/bin/env python3
"""Optimizer steps of `cplm bench step` beside the same model in eager PyTorch (and torch.compile).

Alternates the two, process by process, on the same threads; prints the median ratio of tokens/s and the
ratio of the memory that steps need above what lived before them.

    tests/eager/bench_step.py configs/bench-step.yaml --rounds 5
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def status_mb(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status: no line {name}")


def eager(config, steps, warmup, compiled):
    import torch

    sys.path.insert(0, str(ROOT / "tests"))
    from eager.eager_cplm import EagerCplm, make_optimizer, shape_of, step

    shape, train = shape_of(config), config["train"]
    torch.set_num_threads(train["threads"])
    torch.manual_seed(0)
    weights = {}
    names = subprocess.run([config["binary"], "check", "--json", config["path"]] + config["set"], check=True,
                           capture_output=True, text=True).stdout
    for name, dims in json.loads(names)["tensors"].items():
        fill = torch.ones(dims) if "norm" in name else torch.randn(dims) * config["model"]["initializer_range"]
        weights[name] = fill.requires_grad_()
    model = EagerCplm(shape, weights)
    if compiled:
        model.loss = torch.compile(model.loss)
    optimizer = make_optimizer(weights, config["optimizer"])
    length = config["data"]["sequence_length"]
    rows = train["batch_tokens"] // length
    before = status_mb("VmRSS")
    seconds = []
    for i in range(warmup + steps):
        tokens = (torch.rand(rows, length + 1) ** 3 * shape.vocab_size).long()
        start = time.perf_counter()
        step(model, optimizer, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), 1e-5,
             config["optimizer"]["grad_clip"], train["micro_batch"])
        if i >= warmup:
            seconds.append(time.perf_counter() - start)
    return {"tokens_per_s": train["batch_tokens"] / statistics.median(seconds),
            "step_ms_median": 1000 * statistics.median(seconds),
            "step_memory_mb": status_mb("VmHWM") - before}


def resolved(binary, path, overrides):
    import yaml

    sets = [word for item in overrides for word in ("--set", item)]
    report = json.loads(subprocess.run([binary, "check", "--json", path] + sets, check=True, capture_output=True,
                                       text=True).stdout)
    config = yaml.safe_load(report["config"])
    config.update(binary=binary, path=path, set=sets)
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside eager")
    parser.add_argument("--binary", default=str(ROOT / "build/release/cplm"))
    parser.add_argument("--worker", choices=["eager", "compile"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    config = resolved(arguments.binary, arguments.config, arguments.overrides)
    if arguments.worker:
        result = eager(config, arguments.steps, arguments.warmup, arguments.worker == "compile")
        print(json.dumps(result))
        return
    timing = ["--steps", str(arguments.steps), "--warmup", str(arguments.warmup)]
    commands = {
        "cplm": [arguments.binary, "bench", "step", arguments.config, "--json", *timing, *config["set"]],
        "eager": [sys.executable, __file__, arguments.config, "--worker", "eager", *timing, *config["set"]],
    }
    if arguments.compile:
        commands["compile"] = [sys.executable, __file__, arguments.config, "--worker", "compile", *timing, *config["set"]]
    results = {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            results[name].append(json.loads(run.stdout))
    for name, runs in results.items():
        rate = statistics.median(r["tokens_per_s"] for r in runs)
        memory = statistics.median(r["step_memory_mb"] for r in runs)
        print(f"{name:8} {rate:10.0f} tokens/s  {memory:8.1f} MB a step")
    for name in commands:
        if name == "cplm":
            continue
        pairs = list(zip(results["cplm"], results[name]))
        speed = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs)
        memory = statistics.median(a["step_memory_mb"] / b["step_memory_mb"] for a, b in pairs)
        print(f"cplm / {name}: {speed:.2f} of its tokens/s, {memory:.2f} of its step memory (medians of {len(pairs)})")


if __name__ == "__main__":
    main()
