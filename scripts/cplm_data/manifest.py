"""What a job's manifest says, and the line that the command ends with."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cplm_data.conversations import ConversationSeries
from cplm_data.journal import Totals
from cplm_data.merge import merge, missing_ranks
from cplm_data.output import OutputFolder
from cplm_data.series import ShardSeries
from cplm_data.sources import Source

if TYPE_CHECKING:
    from cplm_data.job import Job
    from cplm_data.prepare import Preparation

_LIBRARIES = ("tokenizers", "h5py", "pyarrow", "zstandard", "numpy")


def source_label(sources: list[Source]) -> str:
    """File names alone: where the files lay must not change a shard's bytes."""
    first = Path(sources[0].name).name
    return first if len(sources) == 1 else f"{first} and {len(sources) - 1} more files"


def _counts(series: ShardSeries) -> dict[str, int]:
    counts = {"documents": series.document_count, "tokens": series.token_count}
    if not isinstance(series, ConversationSeries):
        return counts
    return counts | {
        "conversations": series.conversation_count,
        "windows": series.num_windows,
        "trained_tokens": series.trained_tokens,
        "padding_tokens": series.padding_tokens,
    }


def manifest_of(
    preparation: Preparation, series: dict[str, ShardSeries], totals: Totals
) -> dict[str, object]:
    """All but the sources, whose hashes may still be computed."""
    job, encoder = preparation.job, preparation.encoder
    truncated = {} if job.sequence_length is None else {"truncated": totals.truncated}
    manifest: dict[str, object] = {
        "format_version": 1,
        "settings": preparation.settings,
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "tokenizer": {
            "sha256": encoder.sha256,
            "vocab_size": encoder.vocab_size,
            "eos_token_id": encoder.eos_id,
        },
        "counts": {name: _counts(one) for name, one in series.items()}
        | {"text_bytes": totals.text_bytes, "dropped_special_ids": totals.dropped_special_ids}
        | truncated,
        "files": {name: file for one in series.values() for name, file in one.files.items()},
        "rejected": totals.rejections.summary(),
        "input": preparation.input,
    }
    if job.dataset is not None:
        manifest["dataset"] = {"name": job.dataset.name, "commit": preparation.dataset_commit}
    return manifest if job.world == 1 else manifest | {"rank": job.rank}


def _fine_tuning_line(job: Job, series: dict[str, ShardSeries]) -> list[str]:
    """What a config needs to know of windows."""
    train = series["train"]
    if not isinstance(train, ConversationSeries) or not train.num_windows:
        return []
    per_window = train.conversation_count / train.num_windows
    tokens = train.num_windows * job.sequence_length
    return [
        f"{per_window:.2f} conversations a window of {job.sequence_length:,}, "
        f"an epoch is {train.num_windows:,} windows or {tokens:,} tokens"
    ]


def closing_line(job: Job, series: dict[str, ShardSeries], totals: Totals) -> str:
    parts = [
        f"{name} {one.token_count:,} tokens in {one.document_count:,} documents, "
        f"shards: {len(one.files)}"
        for name, one in series.items()
    ]
    parts += _fine_tuning_line(job, series)
    rejected = totals.rejections.by_reason
    if rejected:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(rejected.items()))
        parts.append(f"{rejected.total():,} documents rejected ({reasons})")
    if totals.truncated:
        parts.append(f"{totals.truncated:,} conversations cut to {job.sequence_length:,} tokens")
    if totals.dropped_special_ids:
        parts.append(f"{totals.dropped_special_ids:,} characters without a token dropped")
    is_alone = job.world == 1 and job.validation_fraction > 0
    if is_alone and not series["validation"].document_count:
        parts.append("no validation shards, since there is only one document (a txt file is one)")
    return f"{job.output}: " + "; ".join(parts)


def merged_line(job: Job, line: str) -> str:
    """Completes a divided job when this machine's share was the last one."""
    if job.world == 1:
        return line
    missing = missing_ranks(job.output, job.world)
    if missing:
        return f"{line}\n{len(missing)} of {job.world} machines have not finished here yet"
    writer = OutputFolder(job.output, job.rank, job.world).manifest_path.stem.removeprefix(
        "manifest"
    )
    return f"{line}\n{merge(job.output, writer)}"
