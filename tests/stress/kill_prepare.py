#!/usr/bin/env python3
"""Kills scripts/prepare_data.py at random instants and lets it go on until it is done; what it
leaves must be byte-identical to what an undisturbed run with another number of workers leaves.

Not part of the test suite: run it by hand, e.g. tests/stress/kill_prepare.py --kills 100.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "prepare_data.py"


def write_corpus(folder: Path, num_documents: int) -> None:
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(3000)]
    folder.mkdir()
    for number in range(4):
        with open(folder / f"{number}.jsonl", "w", encoding="utf-8") as file:
            for index in range(num_documents // 4):
                text = " ".join(draw.choices(words, k=draw.randint(1, 600)))
                file.write(json.dumps({"id": f"{number}-{index}", "text": text}) + "\n")


def command(source: Path, output: Path, workers: int) -> list[str]:
    line = [sys.executable, str(SCRIPT), "--input", str(source), "--output", str(output)]
    line += ["--train-tokenizer", "2000", "--tokenizer-bytes", "1e6", "--shard-tokens", "100000"]
    return [*line, "--workers", str(workers)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--documents", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory(prefix="kill_prepare_") as scratch:
        folder = Path(scratch)
        write_corpus(folder / "in", given.documents)
        begin = time.monotonic()
        subprocess.run(command(folder / "in", folder / "whole", 1), check=True, **quiet)
        longest = time.monotonic() - begin
        expected = files_of(folder / "whole")
        num_kills = num_runs = 0
        while num_kills < given.kills:
            output = folder / f"out{num_runs}"
            while True:
                line = command(folder / "in", output, draw.choice((1, 2, 3, 6)))
                process = subprocess.Popen(line, **quiet)
                try:
                    process.wait(draw.uniform(0.0, 0.8 * longest))
                    break
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    num_kills += 1
            if process.returncode != 0 or files_of(output) != expected:
                sys.exit(f"run {num_runs}, seed {given.seed}: differs from the undisturbed run")
            num_runs += 1
        print(f"{num_kills} kills in {num_runs} runs: all equal to the undisturbed run")


if __name__ == "__main__":
    main()
