"""A shard of a wandering walk and one-off runs of the program, for comparisons with other libraries."""

import json
import os
import subprocess
from pathlib import Path

import numpy
from cplm_data.shards import ShardProperties, Spool, write_shard

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("CPLM_BUILD_DIR", ROOT / "build/release")) / "cplm"


def make_walk_shard(path, vocabulary, length=4000, document=100):
    """Tokens that wander over the vocabulary, so that they come back; returns them."""
    walk = numpy.random.default_rng(7).integers(-3, 4, length).cumsum()
    tokens = (1 + numpy.abs(walk) % (vocabulary - 1)).astype("uint16")
    tokens[document - 1 :: document] = 0
    properties = ShardProperties(vocabulary, 0, "0" * 64, "random walk", numpy.dtype("uint16"))
    dtypes = properties.dtypes()
    spool = Spool(Path(path), dtypes, dict.fromkeys(dtypes, 0))
    spool.append("tokens", tokens)
    spool.append("document_offsets", numpy.arange(0, length + 1, document, dtype="uint64"))
    spool.close()
    write_shard(spool, properties)
    spool.remove()
    return tokens.astype("int64")


def train(config, *arguments):
    run = subprocess.run([BINARY, "train", config, *arguments], capture_output=True, text=True)
    assert run.returncode in (0, 75), run.stderr


def metrics(run_dir, kind):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line for line in lines if line["kind"] == kind}
