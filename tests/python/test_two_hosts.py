"""A run over two hosts, and over links that fail, where network namespaces can be made."""

import subprocess
import sys
from pathlib import Path

import pytest
from training_files import BINARY

SCRIPT = Path(__file__).resolve().parents[1] / "stress/two_hosts.py"
SKIPPED = 77


@pytest.mark.skipif(not BINARY.exists(), reason="the program is not built")
def test_links_that_fail_end_all_ranks_with_the_cause():
    run = subprocess.run(
        [sys.executable, SCRIPT, "--patience", "10"], capture_output=True, text=True, timeout=1200
    )
    if run.returncode == SKIPPED:
        pytest.skip(run.stderr.strip().splitlines()[-1])
    assert run.returncode == 0, run.stdout + run.stderr
