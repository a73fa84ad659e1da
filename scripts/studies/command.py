"""What the commands of all studies share: arguments, the environment, and errors in one line."""

import argparse
import sys
from pathlib import Path

from environment import enter_environment
from project_version import add_version_argument
from studies.errors import StudyError
from studies.program import find_program

ROOT = Path(__file__).resolve().parents[2]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        print(f"{self.prog}: {message} (--help lists the arguments)", file=sys.stderr)
        sys.exit(2)


def make_parser(description: str, out: str, overrides: bool = True) -> argparse.ArgumentParser:
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_version_argument(parser)
    parser.add_argument(
        "--out", type=Path, default=Path(out),
        help="the study's folder; the same command goes on there (default: %(default)s)",
    )  # fmt: skip
    if overrides:
        parser.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", type=_override,
            help="of every arm's config, any number of times, as in `cplm train`",
        )  # fmt: skip
    parser.add_argument("--program", type=Path, help="the cplm to run (default: the one below build/)")
    return parser


def _override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text}")
    if key in ("run.name", "run.dir", "model.head"):
        raise argparse.ArgumentTypeError(f"the study itself sets {key}")
    return key, value


def whole_numbers(least: int, most: int):
    """A type for lists such as 8,10,12."""

    def convert(text: str) -> list[int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        if not numbers or any(not least <= number <= most for number in numbers):
            raise argparse.ArgumentTypeError(f"expected whole numbers {least} to {most}, as 8,10; got {text}")
        return sorted(set(numbers))

    return convert


def rates(text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or any(not 0 < number < 10 for number in numbers):
        raise argparse.ArgumentTypeError(f"expected learning rates, as 3e-3,1e-2; got {text}")
    return sorted(set(numbers))


def run_study(run, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """run(arguments, path of the program); returns the exit code."""
    enter_environment(parser.prog, ("matplotlib",))
    try:
        run(arguments, find_program(ROOT, arguments.program))
    except StudyError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; the same command goes on from here", file=sys.stderr)
        return 75
    return 0


def aligned(rows: list[list[object]]) -> str:
    """A table: the first row is its head; numbers to the right."""
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    left = [all(not isinstance(row[i], (int, float)) and not _is_number(row[i]) for row in rows[1:]) for i in range(len(widths))]
    lines = [
        "  ".join(cell.ljust(width) if is_left else cell.rjust(width) for cell, width, is_left in zip(row, widths, left))
        for row in texts
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def _is_number(cell: object) -> bool:
    try:
        float(str(cell).split()[0])
    except (ValueError, IndexError):
        return cell is None
    return True
