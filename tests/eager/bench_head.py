#!/usr/bin/env python3
"""The loss head (LM + CP) of `cplm bench ops` beside the same head in eager PyTorch.

Forward and backward on the same threads, process by process in turn; prints the medians of the ratios of
time and of memory. Memory is on both sides the peak of tensors that the allocator gave out, above what lived
before and without gradients: our allocator's count, and the profiler's of PyTorch's.

    tests/eager/bench_head.py --vocab 8192 --width 256 --length 1024
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))


def peak_allocated_mb(run):
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()  # negative where memory is given back
        peak = max(peak, live)
    return peak / 2**20


def eager(arguments):
    import torch

    from eager.eager_cplm import EagerCplm, Shape

    torch.set_num_threads(arguments.threads)
    vocab, width, length = arguments.vocab, arguments.width, arguments.length
    shape = Shape(vocab, width, 0, 1, 1, 1, 1e4, 1e-5, [], 0, "cplm")
    sizes = {
        "model.embed_tokens.weight": (vocab, width),
        "copy_token.weight": (width,),
        "cp_head.q_proj.weight": (width, width),
        "cp_head.k_proj.weight": (width, width),
        "cp_head.sink": (width,),
    }
    weights = {name: (torch.randn(size) * 0.05).requires_grad_() for name, size in sizes.items()}
    model = EagerCplm(shape, weights)
    h = torch.randn(1, length, width, requires_grad=True)
    ids, targets = torch.randint(vocab, (2, 1, length))

    def step():
        (-model.head_log_prob(h, ids, targets)).mean().backward()

    seconds = []
    for _ in range(arguments.repeats + 1):
        for tensor in [h, *weights.values()]:
            tensor.grad = None
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    for tensor in [h, *weights.values()]:
        tensor.grad = None
    gradients = sum(t.numel() * 4 for t in [h, *weights.values()]) / 2**20
    return {"ms": 1000 * statistics.median(seconds[1:]), "extra_mb": peak_allocated_mb(step) - gradients}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in [("vocab", 8192), ("width", 256), ("length", 1024), ("threads", 2), ("rounds", 5),
                          ("repeats", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--binary", default=str(ROOT / "build/release/cplm"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(eager(arguments)))
        return
    shape = [
        f"--{name}={getattr(arguments, name)}"
        for name in ("vocab", "width", "length", "threads", "repeats")
    ]
    ours = [arguments.binary, "bench", "ops", "--json", f"--size={arguments.vocab}x{arguments.width}",
            f"--length={arguments.length}", f"--tokens={arguments.length}", f"--threads={arguments.threads}",
            f"--repeats={arguments.repeats}", "--op=loss head (LM + CP)"]
    pairs = []
    for _ in range(arguments.rounds):
        run = subprocess.run(ours, check=True, capture_output=True, text=True)
        row = json.loads(run.stdout)["ops"][0]
        run = subprocess.run(
            [sys.executable, __file__, "--worker", *shape],
            check=True,
            capture_output=True,
            text=True,
        )
        pairs.append((row, json.loads(run.stdout)))
    median = lambda f: statistics.median(f(a, b) for a, b in pairs)  # noqa: E731
    print(
        f"V {arguments.vocab}, D {arguments.width}, T {arguments.length}, {arguments.threads} threads, medians of {len(pairs)}"
    )
    print(f"cplm   {median(lambda a, b: a['ms']):9.1f} ms  {median(lambda a, b: a['extra_mb']):8.1f} MiB, "
          f"{median(lambda a, b: a['time_over_products']):.3f} times its products")
    print(f"eager  {median(lambda a, b: b['ms']):9.1f} ms  {median(lambda a, b: b['extra_mb']):8.1f} MiB")
    print(f"cplm / eager: {median(lambda a, b: a['ms'] / b['ms']):.2f} of its time, "
          f"{median(lambda a, b: a['extra_mb'] / b['extra_mb']):.3f} of its memory")


if __name__ == "__main__":
    main()
