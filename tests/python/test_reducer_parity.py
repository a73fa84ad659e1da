"""Gradients that two ranks of `cplm train` sum, beside those of c10d's own Reducer.

PyTorch's DistributedDataParallel (the Reducer) wraps the eager model; both take the same weights and
the same rows. The gradient of cplm is what its step added to Adam's first moment.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from test_eager_parity import ROWS, batch_of, config_text
from training_files import BINARY, make_walk_shard, train

torch = pytest.importorskip("torch", reason="needs scripts/setup --reference")
safetensors = pytest.importorskip("safetensors.torch", reason="needs scripts/setup --reference")
yaml = pytest.importorskip("yaml", reason="needs scripts/setup --reference")

from eager.eager_cplm import EagerCplm, shape_of  # noqa: E402

VOCABULARY, RANKS = 97, 2


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def environments():
    port = free_port()
    for rank in range(RANKS):
        yield os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
                            "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                            "PYTHONPATH": os.pathsep.join(sys.path)}


def run_ranks(command):
    children = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
                for environment in environments()]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode in (0, 75), errors


def reduce_by_ddp(folder, config_file, shard, update):
    """One rank: gradients of its share of the batch, averaged by the Reducer, saved by rank 0."""
    import h5py

    config = yaml.safe_load(Path(config_file).read_text())
    weights = safetensors.load_file(Path(folder) / "model.safetensors")
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.names = list(weights)
            self.tensors = torch.nn.ParameterList([torch.nn.Parameter(weights[n]) for n in self.names])

        def forward(self, ids, targets):
            named = dict(zip(self.names, self.tensors))
            return EagerCplm(shape_of(config), named).loss(ids, targets)

    model = Model()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    with h5py.File(shard) as file:
        tokens = torch.from_numpy(file["tokens"][:].astype("int64"))
    ids, targets = batch_of(tokens, 11, update)
    mine = slice(rank * ROWS // RANKS, (rank + 1) * ROWS // RANKS)
    parallel(ids[mine], targets[mine]).backward()
    if rank == 0:
        grads = {n: t.grad.contiguous() for n, t in zip(model.names, model.tensors)}
        safetensors.save_file(grads, Path(folder) / "reducer.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not BINARY.exists(), reason="needs the cplm program")
@pytest.mark.parametrize("head,tied", [("vanilla", True), ("cplm", True), ("cplm", False)])
def test_two_ranks_sum_what_the_reducer_sums(tmp_path, head, tied):
    shard, run_dir, config_path = tmp_path / "shard_00000.h5", tmp_path / "run", tmp_path / "parity.yaml"
    make_walk_shard(shard, VOCABULARY)
    text = config_text(shard, run_dir, "hybrid", head, tied)
    config_path.write_text(text.replace("grad_clip: 0.5", "grad_clip: 0.0"))
    train(config_path, "--stop-after", "1")
    run_ranks([BINARY, "train", config_path, "--stop-after", "1"])
    before, after = (run_dir / f"checkpoints/step_{step:010d}" for step in (1, 2))
    run_ranks([sys.executable, __file__, before, run_dir / "config.yaml", shard, "2"])

    expected = safetensors.load_file(before / "reducer.safetensors")
    old = safetensors.load_file(before / "optimizer.safetensors")
    new = safetensors.load_file(after / "optimizer.safetensors")
    largest = max(tensor.abs().max() for tensor in expected.values())
    for name, gradient in expected.items():
        ours = (new["exp_avg." + name] - 0.9 * old["exp_avg." + name]) / 0.1
        assert (ours - gradient).abs().max() <= 1e-12 * largest, name


if __name__ == "__main__":
    reduce_by_ddp(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
