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

from rank_runs import BINARY, end_state, make_data, write_config

def start(config):
    return subprocess.Popen(
        [BINARY, "train", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(config):
    process = start(config)
    _, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"a run ended with exit code {process.returncode}: {err.strip().splitlines()[-1]}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    instants = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        configs = {run: write_config(folder, run, arguments.steps) for run in ("calm", "killed")}
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
                    raise SystemExit(
                        f"exit code {process.returncode} after {kills} kills: {process.stderr.read()}"
                    )
                # Done before the kill: what it made is compared, and a fresh run takes the next kills.
                compare(folder, arguments.steps, kills)
                subprocess.run(["rm", "-rf", folder / "killed"], check=True)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        finish(configs["killed"])
        compare(folder, arguments.steps, kills)
        check = subprocess.run(
            [BINARY, "verify-checkpoint", folder / "killed"], capture_output=True, text=True
        )
        if check.returncode != 0:
            raise SystemExit(check.stdout + check.stderr)
        print(
            f"{kills} kills over {finished + 1} runs of {arguments.steps} steps in {time.monotonic() - began:.0f} s: "
            "weights, moments and metrics equal the undisturbed run's"
        )


def compare(folder, steps, kills):
    calm, killed = end_state(folder / "calm", steps), end_state(folder / "killed", steps)
    if calm != killed:
        parts = [n for n in calm[0] if calm[0][n] != killed[0][n]]
        parts += ["metrics.jsonl"] if calm[1] != killed[1] else []
        raise SystemExit(f"after {kills} kills: {', '.join(parts)} differ from the undisturbed run's")


if __name__ == "__main__":
    main()
