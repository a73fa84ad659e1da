#!/usr/bin/env python3
"""The study of small models (docs/study.md): trains some thirty of two million parameters, sliding, full and
hybrid, vanilla and Copy-Paste, evaluates them, and writes what they found as JSON, Markdown and pictures.

scripts/study sets up, builds and prepares the text first, and then runs this.
"""

import hashlib
import os
import sys
from pathlib import Path

from studies.command import make_parser, run_study


def run(given, program: Path) -> None:
    from studies.small_models import config_files, make_plan
    from studies.small_models_results import write_results
    from studies.errors import StudyError
    from studies.steps import StepRunner
    from studies.study import Study

    manifest = given.data / "manifest.json"
    if not manifest.is_file():
        raise StudyError(f"--data {given.data}: holds no manifest.json; scripts/quickstart prepares it", 2)
    data = {"data": str(given.data), "data_sha256": hashlib.sha256(manifest.read_bytes()).hexdigest()}
    study = Study("study", given.out, {**data, "device": given.device}, program, config_files())
    plan = make_plan(given.out, given.data, given.device)
    runner = StepRunner(given.out / "steps", program, given.jobs, study.say)
    runner.run(plan.steps)
    write_results(study, plan, runner.seconds(plan.steps))


def main(command_line: list[str] | None = None) -> int:
    parser = make_parser(__doc__, "runs/study", overrides=False)
    parser.add_argument(
        "--data", type=Path, default=Path("data/quickstart"), help="the quickstart's folder (default: %(default)s)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of the program (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="steps at once, each on one thread (default: the cores)"
    )
    given = parser.parse_args(command_line)
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    return run_study(run, parser, given)


if __name__ == "__main__":
    sys.exit(main())
