"""scripts/prepare_data.py: an interruption (Ctrl-C) at any stage is one line, also while it starts."""

import os
import signal
import subprocess
import sys
import time

import pytest
from prepare_support import (
    SCRIPT,
    command_line,
    file_bytes,
    prepare_in_process_of_its_own,
    prepared,
    sample_texts,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

LINE = "prepare_data: interrupted; run it again to go on\n"


@pytest.mark.parametrize("module", ["argparse", "h5py", "tokenizers"])
def test_an_interruption_while_modules_are_imported(tmp_path, module):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n"
    )
    write_texts(tmp_path / "in", sample_texts(2))
    result = subprocess.run(
        [sys.executable, SCRIPT, *command_line(tmp_path / "in", tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "path")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "", LINE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers, seconds", [("2", 0.0), ("5", 0.0), ("5", 0.15), ("5", 0.4)])
def test_an_interruption_while_workers_start(tmp_path, workers, seconds):
    """A terminal sends it to all processes at once."""
    tokenizer = small_tokenizer(tmp_path)
    texts = [text * 50 for text in sample_texts(200)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    arguments = command_line(path, tmp_path / "out", "--workers", workers, tokenizer=tokenizer)
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr.readline() == "encoding 1 files\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    assert (process.returncode, messages) in ((1, LINE), (0, ""))
    result = prepare_in_process_of_its_own(arguments)
    assert result.returncode == 0, result.stderr
    prepared(path, tmp_path / "whole", tokenizer=tokenizer)
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")
