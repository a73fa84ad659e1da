#!/usr/bin/env python3
"""Text (parquet, jsonl, jsonl.gz, jsonl.zst, txt) -> token shards for `cplm train`.

Writes DIR/train/*.h5, DIR/validation/*.h5, DIR/tokenizer.json and, last, DIR/manifest.json.
The same command goes on where it was after an interruption. docs/preparing-data.md has recipes;
the format is docs/shard-format.md; the work is done in cplm_data/.
"""

import sys  # all else is imported where an interruption is answered

from environment import enter_environment

_NAME = "prepare_data"
_PACKAGES = ("h5py", "numpy", "pyarrow.parquet", "tokenizers", "zstandard")


def _job(given):
    """Of parsed arguments."""
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


def _printable(text: str) -> str:
    """File names need not be valid UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _fail(message: object, exit_code: int) -> int:
    print(f"{_NAME}: {_printable(' '.join(str(message).splitlines()))}", file=sys.stderr)
    return exit_code


def _run(command_line: list[str] | None) -> int:
    from cplm_data.arguments import parse_arguments
    from project_version import add_version_argument

    given = parse_arguments({"description": __doc__}, command_line, add_version_argument)
    enter_environment(_NAME, _PACKAGES)
    from cplm_data.errors import PrepareError
    from cplm_data.merge import merge
    from cplm_data.prepare import run

    try:
        print(_printable(merge(given.output) if given.merge else run(_job(given))))
    except PrepareError as error:
        return _fail(error, error.exit_code)
    return 0


def main(command_line: list[str] | None = None) -> int:
    try:
        return _run(command_line)
    except OSError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted; run it again to go on", 1)
    except MemoryError:
        return _fail("out of memory; give fewer --workers and run again, it goes on", 1)


if __name__ == "__main__":
    sys.exit(main())
