"""What the tests of scripts/prepare_data.py share: running it, reading its output back."""

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import prepare_data
import zstandard
from cplm_data.tokenizer import train_tokenizer
from tokenizers import Tokenizer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "prepare_data.py"
EOS = "<|endoftext|>"
TRAIN_SMALL = ("--train-tokenizer", "257")


def command_line(inputs, output, *arguments, tokenizer=TRAIN_SMALL):
    """inputs is a path, a pattern or a list of them."""
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return [str(part) for part in ("--input", *inputs, "--output", output, *tokenizer, *arguments)]


def prepare(inputs, output, *arguments, tokenizer=TRAIN_SMALL):
    """Runs the command in this process, which saves the start of one."""
    line = command_line(inputs, output, *arguments, tokenizer=tokenizer)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = prepare_data.main(line)
        except SystemExit as end:
            code = end.code
    return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


def killed_at_disk_call(line, number):
    """Runs the command in a fork that is killed right before its number-th fsync, rename or removal
    of a file; False when it ended before."""
    child = os.fork()
    if child == 0:
        calls = iter(range(number + 1))

        def killing(call):
            def killed_or_called(*arguments, **options):
                if next(calls, number) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return killed_or_called

        os.fsync, os.replace, os.unlink = map(killing, (os.fsync, os.replace, os.unlink))
        with open(os.devnull, "w") as nothing:
            sys.stdout = sys.stderr = nothing
            code = prepare_data.main(line)
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def small_tokenizer(folder):
    """A byte-level BPE without merges, as --tokenizer takes it."""
    path = folder / "small-tokenizer.json"
    path.write_bytes(train_tokenizer(iter(sample_texts(3)), 257, EOS))
    return ("--tokenizer", path)


def prepare_in_process_of_its_own(line, **options):
    command = [sys.executable, SCRIPT, *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def prepared(inputs, output, *arguments, **options):
    """Runs the command, which must succeed, and returns the manifest."""
    result = prepare(inputs, output, *arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads((output / "manifest.json").read_bytes())


def failure(inputs, output, *arguments, **options):
    """Runs the command, which must fail with one line; returns exit code and line."""
    return failure_line(prepare(inputs, output, *arguments, **options), output)


def failure_line(result, output):
    lines = [line for line in result.stderr.splitlines() if line.startswith("prepare_data: ")]
    assert "Traceback" not in result.stderr, result.stderr
    assert len(lines) == 1 and result.stderr.endswith(lines[0] + "\n"), result.stderr
    assert not (output / "manifest.json").exists()
    return result.returncode, lines[0]


def documents(output, split):
    """A split's decoded documents; checks that each ends with eos and that nothing else is eos."""
    tokenizer = Tokenizer.from_file(str(output / "tokenizer.json"))
    eos_id = tokenizer.token_to_id(EOS)
    texts = []
    for path in sorted((output / split).glob("*.h5")):
        with h5py.File(path, "r") as file:
            tokens, offsets = file["tokens"][:], file["document_offsets"][:]
            assert offsets[0] == 0 and offsets[-1] == tokens.size
            for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
                ids = tokens[begin:end].tolist()
                assert ids[-1] == eos_id and eos_id not in ids[:-1]
                texts.append(tokenizer.decode(ids[:-1], skip_special_tokens=False))
    return texts


def all_documents(output):
    return sorted(documents(output, "train") + documents(output, "validation"))


def file_bytes(folder):
    """Every file below a folder by its relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_jsonl(path, records):
    """Compressed as the suffix says; records are objects, or bytes taken as they are."""
    lines = [
        record if isinstance(record, bytes) else json.dumps(record).encode() for record in records
    ]
    data = b"".join(line + b"\n" for line in lines)
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def write_texts(folder, texts):
    os.makedirs(folder, exist_ok=True)
    for number, text in enumerate(texts):
        path = folder / f"{number:04d}.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def sample_texts(count, start=0):
    return [
        f"Document {n} tells of {n * n} birds.\nIt ends here." for n in range(start, start + count)
    ]
