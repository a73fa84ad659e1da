#!/usr/bin/env python3
"""Draws what `cplm eval TASK --out` found: TASK.png and TASK.svg beside TASK.json.

scripts/pictures/ has one module a task, named like it.
"""

import importlib
import re
import sys

from pictures.style import draw_from_command_line

FORMAT = re.compile(r"cplm-eval-([a-z-]+)-\d+")


def draw(results):
    told = results.get("format") if isinstance(results, dict) else None
    match = FORMAT.fullmatch(str(told))
    if not match:
        sys.exit(f"expected a file of `cplm eval`, format cplm-eval-TASK-N; found format {told!r}")
    try:
        picture = importlib.import_module("pictures." + match[1].replace("-", "_"))
    except ModuleNotFoundError:
        sys.exit(f"no picture is known for the task {match[1]!r}")
    return picture.draw(results)


if __name__ == "__main__":
    draw_from_command_line(__doc__.splitlines()[0], "TASK.json, as `cplm eval --out` writes it", draw)
