"""scripts/check_layers.py: the repository keeps to its layers, and every planted breach is found."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "TO" + "DO"


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_layers.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project that keeps to the layers."""
    files = {
        "include/cplm/base.h": "#include <string>\n",
        "include/cplm/config.h": '#include "cplm/base.h"\n',
        "include/cplm/data.h": '#include "cplm/config.h"\n',
        "include/cplm/model.h": '#include <ATen/core/Tensor.h>\n#include "cplm/config.h"\n',
        "include/cplm/train.h": '#include "cplm/model.h"\n',
        "include/cplm/plan.h": '#include "cplm/config.h"\n',
        "src/base/text.cpp": '#include "cplm/base.h"\n',
        "src/data/hdf5_file.h": "#include <hdf5.h>\n",
        "src/data/shard.h": '#include "data/hdf5_file.h"\n',
        "src/runs/losses.cpp": '#include "data/hdf5_file.h"\n',
        "src/cli/main.cpp": '#include "cplm/plan.h"\n#include "cplm/train.h"\n',
        "kernels/params.h": "#include <cstdint>\n",
        "kernels/score.cu": '#include "params.h"\n',
    }
    for name, text in files.items():
        write(tmp_path, name, text)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_repository_keeps_to_its_layers() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


def test_a_clean_tree_passes(tree: Path) -> None:
    result = check(tree)
    assert (result.returncode, result.stdout) == (0, "check_layers: 13 files keep to the layers\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "src/base/bad.cpp",
            '\n#include "cplm/config.h"\n',
            "src/base/bad.cpp:2: includes cplm/config.h of config, and base may use only: nothing of ours",
        ),
        (
            "src/model/bad.cpp",
            "#include <cplm/train.h>\n",
            "includes cplm/train.h of train, and model may use only: base, config, ops",
        ),
        ("src/train/bad.cpp", '#include "cli/main.cpp"\n', "includes cli/main.cpp of cli"),
        ("src/model/bad.cpp", '#include "cplm/plan.h"\n', "includes cplm/plan.h of train"),
        ("src/runs/bad.cpp", '#include "data/shard.h"\n', "includes data/shard.h of data"),
        ("src/runs/bad.cpp", '#include "cplm/data.h"\n', "includes cplm/data.h of data"),
        ("include/cplm/base.h", '#  include "cplm/data.h"\n', "includes cplm/data.h of data"),
        (
            "kernels/bad.cuh",
            '#include "cplm/base.h"\n',
            "includes cplm/base.h of base, and kernels may use only: nothing of ours",
        ),
        (
            "src/data/bad.cpp",
            "#include <ATen/ops/mm.h>\n",
            "includes ATen/ops/mm.h, and data is free of LibTorch",
        ),
        ("kernels/bad.cu", "#include <c10/cuda/CUDAStream.h>\n", "kernels is free of LibTorch"),
        (
            "tests/bad_test.cpp",
            "#include <torch/torch.h>\n",
            "tests/bad_test.cpp:1: includes torch/torch.h",
        ),
        ("src/model/bad.cpp", '#include "torch/torch.h"\n', "includes torch/torch.h"),
        (
            "src/base/bad.cpp",
            '#include "neighbour.h"\n',
            'includes "neighbour.h", which is not below include/ or src/',
        ),
        ("src/novelty/bad.cpp", "\n", "module novelty is not in the arrows"),
        (
            "scripts/bad.py",
            f"x = 1  # {MARK}: later\n",
            "scripts/bad.py:1: has an unfinished mark without an issue number",
        ),
        ("src/base/bad.h", "\n" * 401, "has 401 lines, at most 400 are allowed"),
    ],
)
def test_a_breach_is_found(tree: Path, name: str, text: str, message: str) -> None:
    write(tree, name, text)
    result = check(tree)
    assert result.returncode == 1
    assert message in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_mark_with_its_issue_and_400_lines_pass(tree: Path) -> None:
    write(tree, "src/base/long.cpp", "\n" * 399 + f"// {MARK}(#12): faster\n")
    assert check(tree).returncode == 0


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    result = check(tmp_path)
    assert result.returncode == 2
    assert "no source files below" in result.stderr
