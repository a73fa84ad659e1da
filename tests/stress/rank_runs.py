"""Small runs of several ranks for the stress scripts: their config, processes, and what they end with."""

import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "scripts")]
from training_files import BINARY, make_walk_shard  # noqa: E402

PEER_LOST, STOPPED = 6, 75
TIMES = (
    "step_ms",
    "tokens_per_s",
    "data_wait_ms",
    "peak_memory_mb",
    "reduce_wait_ms",
    "slowest_rank",
    "slowest_rank_ms",
)
CONFIG = """
run: {{name: stress, dir: "{run}", seed: 5}}
model: {{vocab_size: 97, hidden_size: 32, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,
  intermediate_size: 64, backbone: hybrid, sliding_window: 16, head: cplm}}
data: {{train: ["{shard}"], validation: ["{shard}"], sequence_length: 64}}
train: {{steps: {steps}, batch_tokens: 256, micro_batch: 2, device: cpu, precision: float32, threads: 1}}
schedule: {{warmup_steps: 10}}
validation: {{every: 7, sequences: 8}}
checkpoint: {{every: 5, keep: 2}}
distributed: {{timeout_s: {timeout_s}, bucket_mb: 1, compare_every: 5}}
log: {{every: 3}}
"""


def make_data(folder):
    make_walk_shard(folder / "shard.h5", 97, 8000)


def write_config(folder, run, steps, timeout_s=60):
    path = folder / f"{run}.yaml"
    path.write_text(
        CONFIG.format(run=folder / run, shard=folder / "shard.h5", steps=steps, timeout_s=timeout_s)
    )
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """The processes of one start; `prefix(rank)` is put before a rank's command, such as `ip netns exec NAME`."""

    def __init__(
        self,
        folder,
        config,
        size,
        settings=(),
        address="127.0.0.1",
        local_size=None,
        prefix=lambda rank: [],
    ):
        self.logs = [folder / f"rank{rank}.log" for rank in range(size)]
        self.began = time.time()
        local_size = local_size or size
        arguments = [BINARY, "train", config]
        for setting in settings:
            arguments += ["--set", setting]
        port, job = str(free_port()), f"stress-{os.getpid()}-{random.getrandbits(32)}"
        self.processes = []
        for rank, log in enumerate(self.logs):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank % local_size),
                "LOCAL_WORLD_SIZE": str(local_size),
                "MASTER_ADDR": address,
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": job,
                "OMP_NUM_THREADS": "1",
            }
            with log.open("w") as out:
                self.processes.append(
                    subprocess.Popen(
                        [*prefix(rank), *arguments], stdout=out, stderr=out, env=environment
                    )
                )

    def running(self):
        return [rank for rank, process in enumerate(self.processes) if process.poll() is None]

    def wait(self, seconds):
        """Whether all have ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.running()

    def signal(self, number, ranks):
        for rank in ranks:
            self.processes[rank].send_signal(number)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def codes(self):
        return [process.returncode for process in self.processes]

    def log(self, rank):
        return self.logs[rank].read_text(errors="replace")

    def last_lines(self):
        lines = [self.log(rank).strip().splitlines()[-1:] or ["(nothing)"] for rank in range(len(self.logs))]
        return "\n".join(
            f"  rank {rank} ({code}): {line[0]}"
            for rank, (code, line) in enumerate(zip(self.codes(), lines))
        )

    def resumed_at(self):
        found = re.search(r"resumed at step (\d+) from", self.log(0))
        return int(found.group(1)) if found else None


def fail(what, ranks=None):
    raise SystemExit(what + ("\n" + ranks.last_lines() if ranks else ""))


def newest_checkpoint(run):
    """The step of the newest published one, whose every file must be what its manifest says; None without one."""
    published = sorted((run / "checkpoints").glob("step_*")) if run.exists() else []
    if not published:
        return None
    manifest = json.loads((published[-1] / "manifest.json").read_text())
    for name, file in manifest["files"].items():
        if hashlib.sha256((published[-1] / name).read_bytes()).hexdigest() != file["sha256"]:
            fail(f"{published[-1] / name} is not what its manifest says")
    return manifest["step"]


def end_state(run, steps):
    """Hashes of weights and moments at the end, and the metrics without times."""
    folder = run / f"checkpoints/step_{steps:010d}"
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
             for name in ("model.safetensors", "optimizer.safetensors")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return files, [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
