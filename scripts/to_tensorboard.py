#!/usr/bin/env python3
"""metrics.jsonl of runs -> event files for TensorBoard, once or while the runs go on.

Every number of a line becomes a scalar KIND/FIELD at the line's step, written by TensorBoard's own
writer to RUN/tensorboard (or --out DIR/NAME). Run again, or after a kill, it writes only what is
missing; when a resumed run takes lines back (metrics.stale.jsonl), TensorBoard is told to forget
them. Times shown by TensorBoard are those of the conversion. Look at the result with
  .venv/bin/tensorboard --logdir runs
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from environment import enter_environment
from project_version import add_version_argument

_NAME = "to_tensorboard"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        print(f"{_NAME}: {message} (--help lists the arguments)", file=sys.stderr)
        sys.exit(2)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"expected 0.05 to 86400 seconds, got {text}")
    return value


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_version_argument(parser)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", type=Path, metavar="DIR", help="DIR/NAME instead of RUN/tensorboard")
    parser.add_argument("--follow", action="store_true", help="go on until interrupted")
    parser.add_argument(
        "--every", type=_seconds, default=5.0, metavar="SECONDS",
        help="with --follow: between looks (default %(default)s)",
    )
    return parser.parse_args(arguments)


def _folder_of(run: Path, out: Path | None) -> Path:
    return run / "tensorboard" if out is None else out / run.resolve().name


def _convert(arguments: argparse.Namespace) -> None:
    from cplm_tensorboard.conversion import Conversion
    from cplm_tensorboard.errors import ConvertError

    folders = [_folder_of(run, arguments.out).resolve() for run in arguments.runs]
    twice = [str(run) for run, folder in zip(arguments.runs, folders) if folders.count(folder) > 1]
    if twice:
        raise ConvertError(f"{' and '.join(twice)} would be written to one folder: give each alone", 2)
    runs = [
        Conversion(run, _folder_of(run, arguments.out), arguments.follow) for run in arguments.runs
    ]
    try:
        while True:
            for run in runs:
                run.update()
            if not arguments.follow:
                return
            time.sleep(arguments.every)
    finally:
        for run in runs:
            run.close()


def _interrupt(_number, _frame) -> None:
    raise KeyboardInterrupt


def main(command_line: list[str] | None = None) -> int:
    arguments = _parse(command_line)
    enter_environment(_NAME, ("tensorboard",))
    from cplm_tensorboard.errors import ConvertError

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _convert(arguments)
    except ConvertError as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"{_NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if arguments.follow:  # as such a call ends
            return 0
        print(f"{_NAME}: interrupted; run it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
