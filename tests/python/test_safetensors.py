"""Our safetensors reader and writer against the Python package: each reads what the other wrote.

The C++ side is the program safetensors_copy of the build folder CPLM_BUILD_DIR (build/release).
"""

import os
import pathlib
import subprocess

import pytest

numpy = pytest.importorskip("numpy")
safetensors_numpy = pytest.importorskip("safetensors.numpy")
from safetensors import safe_open  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.fixture(scope="module")
def copy():
    build = pathlib.Path(os.environ.get("CPLM_BUILD_DIR", ROOT / "build" / "release"))
    program = build / "tests" / "safetensors_copy"
    assert program.exists(), f"{program} is missing: build first, or set CPLM_BUILD_DIR"

    def run(source, target):
        return subprocess.run([program, source, target], capture_output=True, text=True)

    return run


def bits(array):
    return array.dtype, array.shape, numpy.ascontiguousarray(array).tobytes()


def test_every_type_goes_there_and_back(tmp_path, copy):
    random = numpy.random.default_rng(1)
    tensors = {}
    for dtype in DTYPES:
        for shape in [(), (0,), (1,), (3, 5), (2, 0, 4), (17, 3, 2)]:
            values = random.integers(0, 2 if dtype == "bool" else 100, size=shape)
            tensors[f"{dtype}.{'x'.join(map(str, shape))} é\"\n"] = numpy.asarray(values, dtype)
    metadata = {"format": "pt", "note": "naïve \"quotes\" \\ 日本"}
    safetensors_numpy.save_file(tensors, tmp_path / "in", metadata)
    done = copy(tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = safetensors_numpy.load_file(tmp_path / "out")
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert bits(found[name]) == bits(values), name
    with safe_open(tmp_path / "out", framework="numpy") as file:
        assert file.metadata() == metadata


def test_bfloat16_and_torch(tmp_path, copy):
    torch = pytest.importorskip("torch")
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = {
        "bf16": torch.randn(7, 5).bfloat16(),
        "odd": torch.arange(3, dtype=torch.uint8),
        "f32": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "f64": torch.randn(2, 3, dtype=torch.float64),
    }
    safetensors_torch.save_file(tensors, tmp_path / "in")
    done = copy(tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = safetensors_torch.load_file(tmp_path / "out")
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].dtype == values.dtype, name
        assert torch.equal(found[name].view(torch.uint8), values.view(torch.uint8)), name


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "golden").glob("*.safetensors")), ids=lambda p: p.stem
)
def test_golden_files(tmp_path, copy, path):
    done = copy(path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    expected, found = (safetensors_numpy.load_file(p) for p in (path, tmp_path / "out"))
    assert expected.keys() == found.keys()
    assert all(bits(expected[name]) == bits(found[name]) for name in expected)


def test_damaged_file_is_refused_by_both(tmp_path, copy):
    safetensors_numpy.save_file({"x": numpy.ones(4, "float32")}, tmp_path / "in")
    (tmp_path / "in").write_bytes((tmp_path / "in").read_bytes()[:-1])
    with pytest.raises(Exception):
        safetensors_numpy.load_file(tmp_path / "in")
    done = copy(tmp_path / "in", tmp_path / "out")
    assert done.returncode == 1
    assert "truncated" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
