"""The command line of scripts/prepare_data.py. Needs no package beyond Python's own."""

import argparse
import math
import sys
from pathlib import Path
from typing import NoReturn

_ROLES = ("text", "messages", "id", "score", "language", "language_score")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"prepare_data: {message} (--help lists the arguments)", file=sys.stderr)
        sys.exit(2)


def _whole_number(text: str) -> int:
    """Also 1e8, as in configs."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdigit() else int(value)


def _in_range(least: int, most: int, what: str):
    def convert(text: str) -> int:
        value = _whole_number(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {what}, got {text}")
        return value

    convert.__name__ = "whole number"
    return convert


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected 0 (no validation) up to but not 1, got {text}")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text}")
    return value


def _utf8(text: str) -> str:
    """A shell passes on whatever bytes there are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text.encode(errors="backslashreplace").decode()
        raise argparse.ArgumentTypeError(f"expected UTF-8, got {shown}") from None
    return text


def _eos(text: str) -> str:
    if not _utf8(text).strip():
        raise argparse.ArgumentTypeError("expected the text of a token, got nothing")
    return text


def _column(text: str) -> tuple[str, str]:
    role, _, name = _utf8(text).partition("=")
    if role not in _ROLES or not name:
        raise argparse.ArgumentTypeError(
            f"expected ROLE=NAME with a role of {', '.join(_ROLES)}, got {text}"
        )
    return role, name


_TOKENS = _in_range(1, 1 << 40, "1 to 2^40 tokens")
_VOCABULARY = _in_range(257, 1 << 20, "257 (256 bytes and the end of document) to 2^20")


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="GLOB",
        help="files, folders or patterns: parquet, jsonl, jsonl.gz, jsonl.zst, txt",
    )
    group.add_argument(
        "--hf-dataset",
        type=_utf8,
        metavar="NAME[@REVISION]",
        help="a dataset of the Hugging Face hub, downloaded into its cache (HF_HOME)",
    )
    group.add_argument(
        "--hf-files",
        nargs="+",
        type=_utf8,
        action="extend",
        default=[],
        metavar="GLOB",
        help="which files of it (default: all parquet and jsonl files)",
    )
    group.add_argument(
        "--column",
        type=_column,
        action="append",
        default=[],
        metavar="ROLE=NAME",
        help=f"the column or key of a role ({', '.join(_ROLES)}) where it has another name",
    )
    group.add_argument(
        "--chat",
        action="store_true",
        help="conversations (`messages`) instead of texts, by the template of Tulu 3; "
        "needs --sequence-length and --tokenizer",
    )
    group.add_argument(
        "--sequence-length",
        type=_in_range(2, 1 << 30, "2 to 2^30 tokens"),
        metavar="T",
        help="data.sequence_length of the fine-tuning: conversations are cut to T tokens and laid "
        "out in windows of T",
    )


def _add_filters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filters (rejected documents are counted in the manifest)")
    characters = _in_range(1, 1 << 40, "1 to 2^40 characters")
    group.add_argument(
        "--min-score",
        type=_finite,
        metavar="S",
        help="at least this int_score, score, or mean of fw_edu_scores (the first there is)",
    )
    group.add_argument(
        "--language",
        nargs="+",
        type=_utf8,
        action="extend",
        default=[],
        metavar="L",
        help="only these values of language or full_doc_lid",
    )
    group.add_argument(
        "--min-language-score",
        type=_finite,
        metavar="S",
        help="at least this language_score or full_doc_lid_score",
    )
    group.add_argument("--min-characters", type=characters, metavar="N")
    group.add_argument("--max-characters", type=characters, metavar="N")


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tokenizer (one of the first two)")
    group.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json")
    group.add_argument(
        "--train-tokenizer",
        type=_VOCABULARY,
        metavar="V",
        help="train a byte-level BPE of V tokens on the training text",
    )
    group.add_argument(
        "--tokenizer-bytes",
        type=_in_range(1, 1 << 40, "1 to 2^40 bytes"),
        default=100_000_000,
        metavar="N",
        help="text to train it on at most, from all files (default %(default)s)",
    )
    group.add_argument(
        "--eos",
        type=_eos,
        default="<|endoftext|>",
        metavar="TOKEN",
        help="ends each document (default %(default)s)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--output", type=Path, required=True, metavar="DIR")
    group.add_argument(
        "--validation-fraction",
        type=_fraction,
        default=0.05,
        metavar="F",
        help="share of documents held out, by a hash of id or text (default 0.05; one at least)",
    )
    group.add_argument(
        "--shard-tokens",
        type=_TOKENS,
        default=1 << 25,
        metavar="N",
        help="tokens a shard (default %(default)s)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace shards that DIR already holds, and start an interrupted job over",
    )


def _add_division(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cores and machines")
    group.add_argument(
        "--workers",
        type=_in_range(1, 1024, "1 to 1024 workers"),
        metavar="N",
        help="threads that encode (default: one a core); the result is the same for any number",
    )
    group.add_argument(
        "--world",
        type=_in_range(1, 999, "1 to 999 machines"),
        default=1,
        metavar="N",
        help="divide the job among N machines, each with its own --rank and all else equal",
    )
    group.add_argument(
        "--rank",
        type=_in_range(0, 998, "0 to world - 1"),
        metavar="R",
        help="which of them this one is, from 0",
    )
    group.add_argument(
        "--merge",
        action="store_true",
        help="only write DIR/manifest.json from the pieces of all machines (the last one to "
        "finish in a common DIR does it by itself)",
    )


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    names_itself = given.rank is not None or given.world == 1
    given.rank = given.rank or 0
    if given.merge:
        if given.input or given.hf_dataset:
            parser.error("--merge takes --output alone, since all text has been read")
        return
    if not given.input and not given.hf_dataset:
        parser.error("expected --input, --hf-dataset or both")
    if given.hf_files and not given.hf_dataset:
        parser.error("--hf-files selects files of --hf-dataset, which is not given")
    if (given.tokenizer is None) == (given.train_tokenizer is None):
        parser.error("expected one of --tokenizer and --train-tokenizer")
    if given.rank >= given.world:
        parser.error(f"argument --rank: expected 0 to {given.world - 1}, got {given.rank}")
    if given.world > 1 and given.train_tokenizer is not None:
        parser.error(
            "--train-tokenizer on several machines would give each its own; train it first on one "
            "(--train-tokenizer and --world 1 on a part of the text), then give its tokenizer.json "
            "to all by --tokenizer"
        )
    if not names_itself:
        parser.error(f"--world {given.world} needs --rank, 0 to {given.world - 1}: which machine is this?")
    if given.chat and (given.sequence_length is None or given.tokenizer is None):
        parser.error("--chat needs --sequence-length, and --tokenizer, the one of the base model")
    if given.sequence_length is not None and not given.chat:
        parser.error("--sequence-length is for --chat; texts are cut when they are read")
    least, most = given.min_characters, given.max_characters
    if least is not None and most is not None and least > most:
        parser.error(f"--min-characters {least} is above --max-characters {most}")


def parse_arguments(
    parser_options: dict, arguments: list[str] | None, extend
) -> argparse.Namespace:
    """extend: adds what all commands have."""
    parser = _Parser(formatter_class=argparse.RawDescriptionHelpFormatter, **parser_options)
    extend(parser)
    for add in (_add_input, _add_filters, _add_tokenizer, _add_output, _add_division):
        add(parser)
    given = parser.parse_args(arguments)
    _check(parser, given)
    return given
