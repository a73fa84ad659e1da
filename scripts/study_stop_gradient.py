#!/usr/bin/env python3
"""Stop-gradient (docs/analyse.md): trains a vanilla model, a Copy-Paste one, and two whose gradient through
the copy scores, or through scores and gate, does not reach the backbone; prints the share of the gain
that these keep.

As it stands with the data of scripts/quickstart. The 135M form: configs/study-135m-stop-gradient-*.yaml.
"""

import sys
from pathlib import Path

from studies.command import ROOT, make_parser, run_study, whole_numbers
from studies.stop_gradient import run


def main(command_line: list[str] | None = None) -> int:
    parser = make_parser(__doc__, "runs/study-stop-gradient")
    parser.add_argument(
        "--config", type=Path, default=ROOT / "configs/quickstart-cplm.yaml", help="of every arm (default: the quickstart's)"
    )
    parser.add_argument(
        "--seeds", type=whole_numbers(0, 2**31), default=[1234], help="of every arm, as 1,2,3 (default: 1234)"
    )
    return run_study(run, parser, parser.parse_args(command_line))


if __name__ == "__main__":
    sys.exit(main())
