#!/usr/bin/env python3
"""Text (parquet, jsonl, jsonl.gz, jsonl.zst, txt) -> token shards for `cplm train`.

Writes DIR/train/*.h5, DIR/validation/*.h5, DIR/tokenizer.json and, last, DIR/manifest.json.
The format is docs/shard-format.md; the work is done in cplm_data/.
"""

import argparse
import os
import sys
from pathlib import Path

from project_version import add_version_argument

_ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv"


def _enter_environment() -> None:
    """Runs again by the repository's own Python when this one lacks the packages."""
    try:
        import h5py, numpy, pyarrow, tokenizers, zstandard  # noqa: E401, F401
    except ImportError as error:
        python = _ENVIRONMENT / "bin" / "python"
        if python.exists() and Path(sys.prefix).resolve() != _ENVIRONMENT.resolve():
            os.execv(python, [str(python), *sys.argv])
        sys.exit(
            f"prepare_data: {sys.executable} lacks the package {error.name}; run scripts/setup"
        )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        print(f"prepare_data: {message} (--help lists the arguments)", file=sys.stderr)
        sys.exit(2)


def _whole_number(text: str) -> int:
    """Also 1e8, as in configs."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdigit() else int(value)


def _tokens(text: str) -> int:
    value = _whole_number(text)
    if not 1 <= value <= 1 << 40:
        raise argparse.ArgumentTypeError(f"expected 1 to 2^40 tokens, got {text}")
    return value


def _vocabulary(text: str) -> int:
    value = _whole_number(text)
    if not 257 <= value <= 1 << 20:
        raise argparse.ArgumentTypeError(
            f"expected 257 (256 bytes and the end of document) to 2^20, got {text}"
        )
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected 0 (no validation) up to but not 1, got {text}")
    return value


def _eos(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the text of a token, got nothing")
    return text


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_version_argument(parser)
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        required=True,
        metavar="GLOB",
        help="files, folders or patterns",
    )
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json")
    tokenizer.add_argument(
        "--train-tokenizer",
        type=_vocabulary,
        metavar="V",
        help="train a byte-level BPE of V tokens on the training text",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--validation-fraction",
        type=_fraction,
        default=0.05,
        metavar="F",
        help="share of documents held out, by a hash of id or text (default 0.05; one at least)",
    )
    parser.add_argument(
        "--eos",
        type=_eos,
        default="<|endoftext|>",
        metavar="TOKEN",
        help="ends each document (default %(default)s)",
    )
    parser.add_argument(
        "--shard-tokens",
        type=_tokens,
        default=1 << 25,
        metavar="N",
        help="tokens a shard, held in memory (default %(default)s)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace shards that DIR already holds"
    )
    return parser.parse_args(arguments)


def main(command_line: list[str] | None = None) -> int:
    arguments = _parse(command_line)
    _enter_environment()
    from cplm_data.errors import PrepareError
    from cplm_data.prepare import Job, run

    job = Job(
        inputs=arguments.input,
        output=arguments.output,
        tokenizer=arguments.tokenizer,
        vocab_size=arguments.train_tokenizer,
        validation_fraction=arguments.validation_fraction,
        eos=arguments.eos,
        shard_tokens=arguments.shard_tokens,
        overwrite=arguments.overwrite,
    )
    try:
        print(run(job))
    except PrepareError as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"prepare_data: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare_data: interrupted; run it again to start over", file=sys.stderr)
        return 1
    except MemoryError:
        print("prepare_data: out of memory; give a smaller --shard-tokens", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
