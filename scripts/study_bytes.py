#!/usr/bin/env python3
"""Byte level (docs/analyse.md): trains a vanilla and a Copy-Paste model on bytes, whose vocabulary is smaller
than the hidden state, and the same pair on tokens of the same text; prints what the copy head gains.

As it stands with the text of scripts/quickstart. The 135M form: configs/study-135m-bytes-*.yaml.
"""

import sys
from pathlib import Path

from studies.byte_level import run
from studies.command import ROOT, make_parser, run_study


def main(command_line: list[str] | None = None) -> int:
    parser = make_parser(__doc__, "runs/study-bytes")
    parser.add_argument(
        "--text", nargs="+", default=["data/quickstart/text/*.txt"], metavar="GLOB",
        help="as of prepare_data.py --input (default: the quickstart's)",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, default=ROOT / "configs/study-bytes.yaml", help="of every arm (default: configs/study-bytes.yaml)"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="vocabulary of the other pair; 0: none (default: 4096)")
    parser.add_argument("--byte-length", type=int, default=1024, help="bytes a sequence (default: 1024)")
    parser.add_argument("--token-length", type=int, default=256, help="tokens a sequence (default: 256)")
    parser.add_argument("--sequences", type=int, default=128, help="windows measured on; 0: all (default: 128)")
    parser.add_argument("--seed", type=int, default=1234, help="of every arm (default: 1234)")
    given = parser.parse_args(command_line)
    if given.tokens != 0 and given.tokens <= 257:
        parser.error("--tokens: expected 0, or more than bytes have, 257")
    if min(given.byte_length, given.token_length) < 1 or min(given.sequences, given.seed) < 0:
        parser.error("--byte-length and --token-length: expected at least 1, --sequences and --seed at least 0")
    return run_study(run, parser, given)


if __name__ == "__main__":
    sys.exit(main())
