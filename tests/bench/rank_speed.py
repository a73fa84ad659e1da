#!/usr/bin/env python3
"""Figures of runs on this machine's CPU, by the quickstart's model on made-up shards, in rounds:

  async   what steps wait for an asynchronous save (share of a step), and the mean step while one is written,
          beside the mean of the others
  ranks   tokens/s of 2 ranks with 1 thread beside 1 process with 2 threads

    .venv/bin/python tests/bench/rank_speed.py [async] [ranks] [--rounds 3]

Best of the rounds for ranks, median for async. Needs 2 quiet cores: threads of a busy machine wait for each other.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "scripts")]
from training_files import BINARY, make_walk_shard  # noqa: E402

CONFIG = ROOT / "configs/quickstart-cplm.yaml"
WARM_UP = 5  # steps that count nowhere


def train(folder, run, settings, launcher=(), threads="2"):
    """Its train lines and what it told."""
    shutil.rmtree(folder / run, ignore_errors=True)
    command = [*(launcher or [BINARY]), "train", CONFIG, "--log-level", "debug"]
    for setting in (
        f"run.dir={folder / run}",
        f"data.train=[{folder}/shard.h5]",
        "data.validation=[]",
        "log.every=1",
        *settings,
    ):
        command += ["--set", setting]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": threads}
    )
    if done.returncode != 0:
        sys.exit(f"a run ended with exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    lines = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"], done.stderr


def times_of(what, text):
    return {
        int(step): float(ms)
        for step, ms in re.findall(rf"checkpoint of step (\d+): {what} ([0-9.e+-]+) ms", text)
    }


def measure_async(folder, steps):
    lines, text = train(
        folder, "async", [f"train.steps={steps}", "checkpoint.every=15", "checkpoint.async=true"]
    )
    step_ms = {line["step"]: line["step_ms"] for line in lines if line["step"] > WARM_UP}
    during = set()
    for step, written_ms in times_of("written in", text).items():
        while written_ms > 0 and step + 1 in step_ms:
            step += 1
            during.add(step)
            written_ms -= step_ms[step]
    others = statistics.mean(ms for step, ms in step_ms.items() if step not in during)
    waits = [ms for step, ms in times_of("the steps waited", text).items() if step < steps]
    return statistics.mean(waits) / others, statistics.mean(step_ms[step] for step in during) / others


def tokens_per_s(lines):
    counted = [line for line in lines if line["step"] > WARM_UP]
    return (
        1000
        * (counted[1]["tokens"] - counted[0]["tokens"])
        / statistics.mean(line["step_ms"] for line in counted)
    )


def measure_ranks(folder, steps):
    settings = [f"train.steps={steps}", "checkpoint.every=0"]
    launcher = [ROOT / "scripts/launch", "2", "--program", BINARY, "--"]
    two, _ = train(folder, "ranks", [*settings, "train.threads=1"], launcher, threads="1")
    one, _ = train(folder, "alone", [*settings, "train.threads=2"])
    return tokens_per_s(two), tokens_per_s(one)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="async, ranks; both where nothing is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    if set(arguments.what) - {"async", "ranks"}:
        parser.error("expected async or ranks")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_walk_shard(folder / "shard.h5", 8192, 200_000)
        if not arguments.what or "async" in arguments.what:
            waits, slower = zip(*(measure_async(folder, arguments.steps) for _ in range(arguments.rounds)))
            print(f"asynchronous save: steps wait {100 * statistics.median(waits):.2f} % of a step; "
                  f"steps while one is written take {statistics.median(slower):.3f} times the others")
        if not arguments.what or "ranks" in arguments.what:
            two, one = map(
                max, zip(*(measure_ranks(folder, arguments.steps) for _ in range(arguments.rounds)))
            )
            print(
                f"2 ranks with 1 thread: {two:.0f} tokens/s, 1 process with 2 threads: {one:.0f}: {two / one:.3f} of it"
            )


if __name__ == "__main__":
    main()
