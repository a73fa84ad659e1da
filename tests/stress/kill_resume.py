#!/usr/bin/env python3
"""SIGKILLs a small training run at random instants, starts it again each time, and compares what it
ends with to an undisturbed run: every weight, moment and metrics line must be equal (times aside).

    tests/stress/kill_resume.py --kills 100

Outside scripts/test: it takes minutes. --seed makes the instants repeatable (as far as the machine's
speed lets them be). Exit code 1 when anything differs.
"""

import argparse
import random
import subprocess
import tempfile
import time
from pathlib import Path

from rank_runs import BINARY, end_state, make_walk_shard

CONFIG = """
run: {{name: stress, dir: "{run}", seed: 5}}
model: {{vocab_size: 97, hidden_size: 32, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,
  intermediate_size: 64, backbone: hybrid, sliding_window: 16, head: cplm}}
data: {{train: ["{shard}"], validation: ["{shard}"], sequence_length: 64}}
train: {{steps: {steps}, batch_tokens: 256, micro_batch: 2, device: cpu, precision: float32, threads: 1}}
schedule: {{warmup_steps: 10}}
validation: {{every: 7, sequences: 8}}
checkpoint: {{every: 5, keep: 2}}
log: {{every: 3}}
"""


def start(config):
    return subprocess.Popen([BINARY, "train", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(config):
    process = start(config)
    _, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"a run ended with exit code {process.returncode}: {err.strip().splitlines()[-1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    instants = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shard = folder / "shard.h5"
        make_walk_shard(shard, 97, 8000)
        configs = {}
        for run in ("calm", "killed"):
            configs[run] = folder / f"{run}.yaml"
            configs[run].write_text(CONFIG.format(run=folder / run, shard=shard, steps=arguments.steps))
        began = time.monotonic()
        finish(configs["calm"])
        whole = time.monotonic() - began
        kills, finished = 0, 0
        while kills < arguments.kills:
            process = start(configs["killed"])
            try:
                process.wait(instants.uniform(0.05, 0.5 + 0.3 * whole))
                finished += 1
                if process.returncode != 0:
                    raise SystemExit(f"exit code {process.returncode} after {kills} kills: {process.stderr.read()}")
                # Done before the kill: what it made is compared, and a fresh run takes the next kills.
                compare(folder, arguments.steps, kills)
                subprocess.run(["rm", "-rf", folder / "killed"], check=True)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        finish(configs["killed"])
        compare(folder, arguments.steps, kills)
        check = subprocess.run([BINARY, "verify-checkpoint", folder / "killed"], capture_output=True, text=True)
        if check.returncode != 0:
            raise SystemExit(check.stdout + check.stderr)
        print(f"{kills} kills over {finished + 1} runs of {arguments.steps} steps in {time.monotonic() - began:.0f} s: "
              "weights, moments and metrics equal the undisturbed run's")


def compare(folder, steps, kills):
    calm, killed = end_state(folder / "calm", steps), end_state(folder / "killed", steps)
    if calm != killed:
        parts = [n for n in calm[0] if calm[0][n] != killed[0][n]]
        parts += ["metrics.jsonl"] if calm[1] != killed[1] else []
        raise SystemExit(f"after {kills} kills: {', '.join(parts)} differ from the undisturbed run's")


if __name__ == "__main__":
    main()
