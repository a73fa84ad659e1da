"""Every script tells the project's version, as the program does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and path.stat().st_mode & 0o111
)


def test_there_are_scripts() -> None:
    assert {"quickstart", "setup", "test", "prepare_data.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_tells_the_version(name: str) -> None:
    expected = re.search(
        r"^project\(cplm VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE
    )[1]
    python = [sys.executable] if name.endswith(".py") else []  # the one that has the packages
    run = subprocess.run(
        [*python, ROOT / "scripts" / name, "--version"], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"{name} (cplm) {expected}\n"
