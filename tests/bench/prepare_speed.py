#!/usr/bin/env python3
"""The speed of scripts/prepare_data.py beside the tokenizers library alone, and its memory.

Makes inputs from the text files of a folder (by default the quickstart's), trains a tokenizer for
each vocabulary size, and then in rounds, one after the other: the library's encode_batch_fast over
the same texts in memory, with the same number of threads, and the whole command from its start to
its manifest. The ratio of the best times is the figure; on a busy machine that of the processor
times says more. --memory A B compares the peak resident memory of the process tree (each process's
own and its share of common pages) on A and B megabytes.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EOS = "<|endoftext|>"
DOCUMENT_CHARACTERS = 4000  # as long as a web page of FineWeb-Edu


def documents_of(folder: Path, num_bytes: int):
    """Pieces of the files; where more is asked for than there is, with their words rotated."""
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob("*.txt"))]
    if not texts:
        sys.exit(f"{folder}: expected .txt files; run scripts/quickstart or give --text")
    pieces = [
        text[begin : begin + DOCUMENT_CHARACTERS]
        for text in texts
        for begin in range(0, len(text), DOCUMENT_CHARACTERS)
    ]
    random.Random(1).shuffle(pieces)
    made = turn = 0
    while made < num_bytes:
        for piece in pieces:
            text = piece[turn * 97 % len(piece) :] + piece[: turn * 97 % len(piece)]
            made += len(text.encode())
            yield text
            if made >= num_bytes:
                return
        turn += 1


def write_input(path: Path, texts) -> None:
    if path.suffix == ".jsonl":
        with open(path, "w", encoding="utf-8") as file:
            for number, text in enumerate(texts):
                file.write(json.dumps({"id": str(number), "text": text}) + "\n")
        return
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema([("text", pyarrow.string()), ("id", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows: list[dict[str, str]] = []
        for number, text in enumerate(texts):
            rows.append({"text": text, "id": str(number)})
            if len(rows) == 1000:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                rows.clear()
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))


class Times(NamedTuple):
    wall_s: float
    processor_s: float  # of all threads and processes


def library_times(tokenizer: Path, texts: list[str], threads: int) -> Times:
    """In a process of its own, since the library keeps its threads."""
    program = (
        "import json, sys, time\n"
        "from tokenizers import Tokenizer\n"
        "tokenizer = Tokenizer.from_file(sys.argv[1])\n"
        "texts = json.load(sys.stdin)\n"
        "begin, processor = time.perf_counter(), time.process_time()\n"
        "for at in range(0, len(texts), 1000):\n"
        "    tokenizer.encode_batch_fast(texts[at : at + 1000], add_special_tokens=False)\n"
        "print(time.perf_counter() - begin, time.process_time() - processor)\n"
    )
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(threads)}
    result = subprocess.run(
        [sys.executable, "-c", program, tokenizer],
        input=json.dumps(texts),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return Times(*map(float, result.stdout.split()))


def tree_of(root: int) -> list[int]:
    """The process, its children and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rsplit(")")[-1].split()[1]
                )
            except (OSError, IndexError):
                continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def memory_of(process: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
    except (OSError, StopIteration):
        return 0


def command_of(source: Path, tokenizer: Path, output: Path, workers: int) -> list[str]:
    command = [sys.executable, ROOT / "scripts" / "prepare_data.py", "--input", source]
    command += ["--tokenizer", tokenizer, "--output", output, "--workers", str(workers)]
    return list(map(str, command))


def prepare(*arguments) -> Times:
    """Nothing looks at the process meanwhile: reading its memory's size would slow it down."""
    begin, before = time.perf_counter(), os.times()
    run = subprocess.run(command_of(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds, after = time.perf_counter() - begin, os.times()
    if run.returncode:
        sys.exit(run.stderr)
    shutil.rmtree(arguments[2])
    processor_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Times(seconds, processor_s)


def memory_of_preparing(*arguments) -> tuple[int, int]:
    """Peak of the summed resident and of the proportional memory."""
    process = subprocess.Popen(
        command_of(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    peaks = {"Rss:": 0, "Pss:": 0}

    def watch() -> None:
        while process.poll() is None:
            tree = tree_of(process.pid)
            for field in peaks:
                peaks[field] = max(peaks[field], sum(memory_of(one, field) for one in tree))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, messages = process.communicate()
    watcher.join()
    if process.returncode:
        sys.exit(messages)
    shutil.rmtree(arguments[2])
    return peaks["Rss:"], peaks["Pss:"]


def train(scripts_input: Path, vocab_size: int, folder: Path) -> Path:
    sys.path.insert(0, str(ROOT / "scripts"))
    from cplm_data.tokenizer import train_tokenizer

    texts = (json.loads(line)["text"] for line in open(scripts_input, encoding="utf-8"))
    path = folder / f"tokenizer-{vocab_size}.json"
    path.write_bytes(train_tokenizer(texts, vocab_size, EOS))
    return path


def compare_speed(given: argparse.Namespace, folder: Path) -> None:
    texts = list(documents_of(given.text, given.megabytes * 1_000_000))
    source = folder / f"speed.{given.format}"
    write_input(source, texts)
    plain = folder / "train.jsonl"
    write_input(plain, documents_of(given.text, 20_000_000))
    print(f"{given.megabytes} MB of text as {given.format}, {given.workers} threads or workers")
    for vocab_size in given.vocab:
        tokenizer = train(plain, vocab_size, folder)
        alone: list[Times] = []
        whole: list[Times] = []
        for _ in range(given.rounds):
            alone.append(library_times(tokenizer, texts, given.workers))
            whole.append(prepare(source, tokenizer, folder / "out", given.workers))
        print(f"vocabulary {vocab_size}:", flush=True)
        for field in Times._fields:
            library = min(getattr(one, field) for one in alone)
            ours = min(getattr(one, field) for one in whole)
            ratio = 100 * library / ours
            print(f"  {field}: library {library:.2f}, prepare_data {ours:.2f}, {ratio:.0f} %")


def compare_memory(given: argparse.Namespace, folder: Path) -> None:
    plain = folder / "train.jsonl"
    write_input(plain, documents_of(given.text, 20_000_000))
    tokenizer = train(plain, given.vocab[-1], folder)
    for megabytes in given.memory:
        source = folder / f"memory.{given.format}"
        write_input(source, documents_of(given.text, megabytes * 1_000_000))
        resident, proportional = memory_of_preparing(source, tokenizer, folder / "out", given.workers)
        print(
            f"{megabytes} MB: peak {resident / 1e6:.0f} MB resident summed, "
            f"{proportional / 1e6:.0f} MB with common pages once",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=ROOT / "data" / "quickstart" / "text")
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="parquet")
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 49152])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", type=int, nargs="*", metavar="MB", help="instead of the speed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepare_speed_") as folder:
        (compare_memory if given.memory else compare_speed)(given, Path(folder))


if __name__ == "__main__":
    main()
