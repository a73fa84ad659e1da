"""The flow of a preparation: find, check, split, train or load the tokenizer, encode, publish.

Documents are read in a fixed order, so equal input and settings give equal bytes.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from cplm_data import shards
from cplm_data.documents import AcceptedDocument, Rejections, Split, accepted
from cplm_data.output import SPLITS, OutputFolder, describe_sources
from cplm_data.progress import Progress
from cplm_data.sources import Source, find_sources
from cplm_data.tokenizer import TextEncoder, read_tokenizer_file, train_tokenizer

# Text handed to the tokenizer at once: enough to keep all cores busy, little enough for memory.
_BATCH_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Job:
    inputs: list[str]
    output: Path
    tokenizer: Path | None  # or else train one:
    vocab_size: int | None
    validation_fraction: float
    eos: str
    shard_tokens: int
    overwrite: bool

    def settings(self, tokenizer_sha256: str | None) -> dict[str, object]:
        """What, beside the input, the output's bytes depend on."""
        return {
            "tokenizer_sha256": tokenizer_sha256,  # null: trained on this input
            "train_tokenizer": self.vocab_size,
            "eos": self.eos,
            "validation_fraction": self.validation_fraction,
            "shard_tokens": self.shard_tokens,
            "shard_format": shards.FORMAT_VERSION,
        }


class Corpus:
    """All documents of the input, as often as they are asked for."""

    def __init__(self, sources: list[Source], progress: Progress) -> None:
        self.sources = sources
        self._num_bytes = max(sum(source.size_bytes for source in sources), 1)
        self._progress = progress

    def share_read(self) -> float:
        return sum(source.bytes_done for source in self.sources) / self._num_bytes

    def documents(self, rejections: Rejections) -> Iterator[AcceptedDocument]:
        for source in self.sources:
            source.bytes_done = 0
        for source in self.sources:
            yield from accepted(source.documents(), rejections)

    def report(self, num_tokens: int) -> None:
        self._progress.update(self.share_read(), num_tokens)

    def training_texts(self, split: Split) -> Iterator[str]:
        for document in self.documents(Rejections()):
            if not split.is_validation(document.split_key):
                self.report(num_tokens=0)
                yield document.text


def _batches(documents: Iterator[AcceptedDocument]) -> Iterator[list[AcceptedDocument]]:
    batch: list[AcceptedDocument] = []
    num_bytes = 0
    for document in documents:
        batch.append(document)
        num_bytes += document.num_bytes
        if num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _encode_all(
    corpus: Corpus,
    rejections: Rejections,
    split: Split,
    encoder: TextEncoder,
    series: dict[bool, shards.ShardSeries],
) -> int:
    """Appends every document to its side of the split; returns the bytes of text."""
    num_bytes = 0
    # One batch is encoded (outside Python's lock) while the next is read and the last is stored.
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        waiting = None
        for batch in itertools.chain(_batches(corpus.documents(rejections)), [None]):
            encoding = batch and pool.submit(encoder.encode, [document.text for document in batch])
            if waiting is not None:
                documents, encoded = waiting
                for document, ids in zip(documents, encoded.result(), strict=True):
                    series[split.is_validation(document.split_key)].add(ids)
                    num_bytes += document.num_bytes
                corpus.report(sum(s.token_count for s in series.values()))
            waiting = batch and (batch, encoding)
    for one in series.values():
        one.finish()
    return num_bytes


def _source_label(sources: list[Source]) -> str:
    """File names alone: where the files lay must not change a shard's bytes."""
    first = Path(sources[0].name).name
    return first if len(sources) == 1 else f"{first} and {len(sources) - 1} more files"


def _manifest(
    job_settings: dict[str, object],
    sources: list[dict[str, object]],
    encoder: TextEncoder,
    series: dict[str, shards.ShardSeries],
    rejections: Rejections,
    num_bytes: int,
) -> dict[str, object]:
    counts = {
        name: {"documents": one.document_count, "tokens": one.token_count}
        for name, one in series.items()
    }
    return {
        "format_version": 1,
        "settings": job_settings,
        "tokenizer": {
            "sha256": encoder.sha256,
            "vocab_size": encoder.vocab_size,
            "eos_token_id": encoder.eos_id,
        },
        "counts": counts
        | {"text_bytes": num_bytes, "dropped_special_ids": encoder.num_dropped_ids},
        "files": {name: file for one in series.values() for name, file in one.files.items()},
        "rejected": rejections.summary(),
        "sources": sources,
    }


def _load_or_train(
    job: Job, given: bytes | None, corpus: Corpus, split: Split, progress: Progress
) -> TextEncoder:
    if given is not None:
        return TextEncoder(given, job.eos, str(job.tokenizer))
    progress.begin(f"training a tokenizer of {job.vocab_size:,} tokens")
    trained = train_tokenizer(corpus.training_texts(split), job.vocab_size, job.eos)
    return TextEncoder(trained, job.eos, "the trained tokenizer")


def run(job: Job) -> str:
    """Does the job unless it is done; returns the closing line."""
    progress = Progress()
    sources = find_sources(job.inputs)
    given = None if job.tokenizer is None else read_tokenizer_file(job.tokenizer)
    settings = job.settings(None if given is None else hashlib.sha256(given).hexdigest())
    described = describe_sources(sources)
    output = OutputFolder(job.output)
    if output.is_complete(settings, described):
        return f"{job.output} is complete: same input and settings, nothing to do"
    if not job.overwrite:
        output.refuse_unless_free(sources)

    corpus = Corpus(sources, progress)
    split = Split(job.validation_fraction)
    split.ensure_both_sides(corpus.documents(Rejections()))
    encoder = _load_or_train(job, given, corpus, split, progress)
    properties = shards.ShardProperties(
        encoder.vocab_size, encoder.eos_id, encoder.sha256, _source_label(sources), encoder.dtype
    )
    output.begin()
    output.write_tokenizer(encoder.json_bytes)
    series = {
        name: shards.ShardSeries(job.output / name, job.shard_tokens, properties) for name in SPLITS
    }
    rejections = Rejections()
    progress.begin(f"encoding {len(sources)} files")
    num_bytes = _encode_all(
        corpus, rejections, split, encoder, {False: series["train"], True: series["validation"]}
    )
    output.finish(_manifest(settings, described, encoder, series, rejections, num_bytes))
    progress.end()
    return _closing_line(job, series, rejections, encoder)


def _closing_line(
    job: Job, series: dict[str, shards.ShardSeries], rejections: Rejections, encoder: TextEncoder
) -> str:
    parts = [
        f"{name} {one.token_count:,} tokens in {one.document_count:,} documents, "
        f"shards: {len(one.files)}"
        for name, one in series.items()
    ]
    if rejections.by_reason:
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in sorted(rejections.by_reason.items())
        )
        parts.append(f"{rejections.by_reason.total():,} documents rejected ({reasons})")
    if encoder.num_dropped_ids:
        parts.append(f"{encoder.num_dropped_ids:,} characters without a token dropped")
    if not series["validation"].document_count and job.validation_fraction > 0:
        parts.append("no validation shards, since there is only one document (a txt file is one)")
    return f"{job.output}: " + "; ".join(parts)
