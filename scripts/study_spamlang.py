#!/usr/bin/env python3
"""SpamLang (docs/analyse.md): trains a vanilla and a Copy-Paste model for each width and vocabulary on
samples that repeat one symbol, and prints how often they repeat it, on symbols seen in training or not.

About 10 minutes on 2 cores as it stands. The 135M form: configs/study-135m-spamlang-*.yaml.
"""

import sys

from studies.command import make_parser, rates, run_study, whole_numbers
from studies.spamlang import run


def main(command_line: list[str] | None = None) -> int:
    parser = make_parser(__doc__, "runs/study-spamlang")
    parser.add_argument(
        "--widths", type=whole_numbers(16, 4096), default=[32, 64], help="hidden sizes, multiples of 16 (default: 32,64)"
    )
    parser.add_argument(
        "--vocabularies", type=whole_numbers(4, 20), default=[8, 10, 12, 14], metavar="EXPONENTS",
        help="powers of two (default: 8,10,12,14)",
    )  # fmt: skip
    parser.add_argument("--lr", type=rates, default=[3e-3, 1e-2], help="of them each head's best (default: 3e-3,1e-2)")
    parser.add_argument("--steps", type=int, default=500, help="updates of 64 samples (default: 500)")
    parser.add_argument("--length", type=int, default=32, help="tokens a sample (default: 32)")
    parser.add_argument("--samples", type=int, default=256, help="samples measured on, of each kind (default: 256)")
    parser.add_argument(
        "--embeddings", nargs="+", choices=("tied", "untied"), default=["tied"], help="of the LM head (default: tied)"
    )
    given = parser.parse_args(command_line)
    if any(width % 16 for width in given.widths):
        parser.error("--widths: expected multiples of 16")
    if min(given.steps, given.samples) < 1 or given.length < 8:
        parser.error("--steps and --samples: expected at least 1, --length at least 8")
    return run_study(run, parser, given)


if __name__ == "__main__":
    sys.exit(main())
