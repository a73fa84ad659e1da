#!/usr/bin/env python3
"""New tokens a second of `cplm generate` beside transformers' generate() with the same weights.

Takes a Hugging Face folder (Llama layout, or an export of ours), imports it, and lets both programs
go on greedily from the same ids with the same threads, in turn; the prompt's own time is left out of
both. With --speculate it times `cplm generate` alone, with and without drafts, on two texts: one
that repeats itself and one that does not. Prints medians and ratios of one run, and with --speculate
how many tokens were drafted, accepted, and passes made.

example: tests/bench/decode_speed.py smollm2-135m --tokens 64
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEW_TOKENS = re.compile(r"new tokens: [\d,]+ in [\d.]+ s \(([\d.]+) a second\)")
DRAFTS = re.compile(r"drafted .*")

PIECE = ("The options argument holds the flags of the connection. If the file does not exist, the "
         "function returns an error and the connection is closed.")
OTHER = ("A subroutine is called by its name. Numbers are written in decimal. The shell reads each line "
         "of the file and runs it. Git stores every commit under its hash, and a branch is a name for "
         "one of them. Modules are found in the search path, first in the current directory.")


def rate_in(stderr: str) -> float:
    found = NEW_TOKENS.search(stderr)
    if found is None:
        raise SystemExit(f"decode_speed.py: no speed in: {stderr}")
    return float(found[1])


def run_cplm(program: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True)


def cplm_rate(program: Path, checkpoint: Path, ids: list[int], tokens: int, threads: int,
              *more: str) -> tuple[float, list[int]]:
    done = run_cplm(program, "generate", str(checkpoint), "--ids", ",".join(map(str, ids)), "--json",
                    "--max-new-tokens", str(tokens), "--threads", str(threads),
                    "--precision", "float32", *more)
    return rate_in(done.stderr), json.loads(done.stdout)["ids"]


def transformers_rate(model, ids: list[int], tokens: int) -> tuple[float, list[int]]:
    import torch

    def timed(count: int) -> tuple[float, list[int]]:
        start = time.perf_counter()
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count,
                             do_sample=False)
        return time.perf_counter() - start, out[0, len(ids):].tolist()

    first, _ = timed(1)
    whole, new = timed(tokens)
    return (tokens - 1) / (whole - first), new


def compare(options: argparse.Namespace, checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.folder, trust_remote_code=True,
                                                 dtype=torch.float32).eval()
    ids = torch.randint(5, model.config.vocab_size, (options.prompt,),
                        generator=torch.Generator().manual_seed(1)).tolist()
    ours, theirs, same = [], [], 0
    for _ in range(options.rounds):
        rate, new = cplm_rate(options.program, checkpoint, ids, options.tokens, options.threads)
        other_rate, other = transformers_rate(model, ids, options.tokens)
        ours.append(rate)
        theirs.append(other_rate)
        same = sum(a == b for a, b in zip(new, other))
    print(f"cplm generate      {statistics.median(ours):8.2f} tokens/s")
    print(f"transformers       {statistics.median(theirs):8.2f} tokens/s")
    print(f"ratio of medians   {statistics.median(ours) / statistics.median(theirs):8.3f}"
          f"   ({same} of {options.tokens} tokens equal)")


def compare_drafts(options: argparse.Namespace) -> None:
    # A weak model's likeliest text soon repeats itself; one that does not is drawn.
    texts_asked = (("repeats itself", " ".join([PIECE] * 4), []),
                   ("does not", OTHER, ["--temperature", "1"]))
    for name, prompt, sampling in texts_asked:
        rates: dict[str, list[float]] = {"none": [], "copy": []}
        texts, counts = set(), ""
        for turn in range(options.rounds):
            for speculate in ("none", "copy") if turn % 2 == 0 else ("copy", "none"):
                done = run_cplm(options.program, "generate", str(options.folder), "--prompt",
                                prompt, "--max-new-tokens", str(options.tokens), "--threads",
                                str(options.threads), *sampling, "--speculate", speculate)
                rates[speculate].append(rate_in(done.stderr))
                texts.add(done.stdout)
                if drafts := DRAFTS.search(done.stderr):
                    counts = drafts[0]
        ratios = sorted(copy / none for none, copy in zip(rates["none"], rates["copy"]))
        print(f"prompt that {name:15} {statistics.median(rates['none']):8.2f} tokens/s, drafted "
              f"{statistics.median(rates['copy']):8.2f}; median of the turns' ratios "
              f"{statistics.median(ratios):.3f} ({ratios[len(ratios) // 4]:.3f} to "
              f"{ratios[-1 - len(ratios) // 4]:.3f} for half of them); {counts}; {len(texts)} text")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a Hugging Face folder, or with --speculate a run")
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/cplm")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--speculate", action="store_true")
    options = parser.parse_args()
    if options.speculate:
        compare_drafts(options)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "model"
        run_cplm(options.program, "import", str(options.folder), str(checkpoint))
        compare(options, checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
