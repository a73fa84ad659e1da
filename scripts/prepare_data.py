#!/usr/bin/env python3
"""Text (parquet, jsonl, jsonl.gz, jsonl.zst, txt) -> token shards for `cplm train`.

Writes DIR/train/*.h5, DIR/validation/*.h5, DIR/tokenizer.json and, last, DIR/manifest.json.
The same command goes on where it was after an interruption. docs/preparing-data.md has recipes;
the format is docs/shard-format.md; the work is done in cplm_data/.
"""

import argparse
import os
import sys
from pathlib import Path

from cplm_data.arguments import parse_arguments
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


def _job(given: argparse.Namespace):
    from cplm_data.filters import Filters
    from cplm_data.hub import HubDataset
    from cplm_data.job import Job

    dataset = HubDataset.parse(given.hf_dataset, given.hf_files) if given.hf_dataset else None
    return Job(
        inputs=given.input,
        dataset=dataset,
        output=given.output,
        tokenizer=given.tokenizer,
        vocab_size=given.train_tokenizer,
        tokenizer_bytes=given.tokenizer_bytes,
        validation_fraction=given.validation_fraction,
        eos=given.eos,
        shard_tokens=given.shard_tokens,
        filters=Filters(
            given.min_score,
            tuple(given.language),
            given.min_language_score,
            given.min_characters,
            given.max_characters,
        ),
        column_names=dict(given.column),
        sequence_length=given.sequence_length,
        rank=given.rank,
        world=given.world,
        num_workers=given.workers,
        overwrite=given.overwrite,
    )


def _run(given: argparse.Namespace) -> str:
    from cplm_data.merge import merge
    from cplm_data.prepare import run

    return merge(given.output) if given.merge else run(_job(given))


def _fail(message: object, exit_code: int) -> int:
    print(f"prepare_data: {' '.join(str(message).splitlines())}", file=sys.stderr)
    return exit_code


def main(command_line: list[str] | None = None) -> int:
    given = parse_arguments({"description": __doc__}, command_line, add_version_argument)
    _enter_environment()
    from cplm_data.errors import PrepareError

    try:
        print(_run(given))
    except PrepareError as error:
        return _fail(error, error.exit_code)
    except OSError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run it again to go on", 1)
    except MemoryError:
        return _fail("out of memory; give fewer --workers and run again, it goes on", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
