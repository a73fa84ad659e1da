"""The flow of a preparation: find, check, split, train or load the tokenizer, encode, publish.

Documents are kept in a fixed order, so equal input and settings give equal bytes, whatever the
number of workers and however often the job was interrupted.
"""

import hashlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from cplm_data.completeness import is_complete
from cplm_data.conversations import ConversationSeries
from cplm_data.corpus import Corpus
from cplm_data.division import parts_of
from cplm_data.documents import Rejections, Split
from cplm_data.encoding import EncodedBatch, EncodingPlan
from cplm_data.input_files import find_sources
from cplm_data.job import Job
from cplm_data.journal import Journal, Totals, place_of
from cplm_data.manifest import closing_line, manifest_of, merged_line, source_label
from cplm_data.output import SPLITS, OutputFolder
from cplm_data.progress import Progress
from cplm_data.series import ShardSeries
from cplm_data.shards import ShardProperties
from cplm_data.source_hashes import SourceHashes
from cplm_data.sources import Part, Place, Source
from cplm_data.tokenizer import read_tokenizer_file, train_tokenizer
from cplm_data.workers import WorkerPool, default_num_workers

_JOURNAL_EVERY_S = 20.0


class Preparation:
    """One machine's share of a job."""

    def __init__(self, job: Job, sources: list[Source], dataset_commit: str | None) -> None:
        self.job = job
        self.dataset_commit = dataset_commit
        self.sources = sources
        self.progress = Progress()
        self.output = OutputFolder(job.output, job.rank, job.world)
        self.selection = job.selection()
        self.corpus = Corpus(sources, parts_of(sources, job.rank, job.world), self.selection)
        given = None if job.tokenizer is None else read_tokenizer_file(job.tokenizer)
        self.given_tokenizer = given
        self.settings = job.settings(None if given is None else hashlib.sha256(given).hexdigest())
        # File names, not paths: where the files lie changes nothing.
        files = [[Path(source.name).name, source.size_bytes] for source in sources]
        digest = hashlib.sha256(repr(files).encode()).hexdigest()
        self.input = {
            "files": len(files),
            "bytes": sum(size for _, size in files),
            "sha256": digest,
        }
        self.identity = {"settings": self.settings, "input": self.input}  # another job has another
        self.journal = Journal(self.output.journal_path, self.identity)

    def read_sources(self) -> list[Source]:
        """Those that this machine reads something of."""
        indices = dict.fromkeys(part.source_index for part in self.corpus.parts)
        return [self.sources[index] for index in indices]

    def is_complete(self) -> bool:
        given = self.given_tokenizer
        return is_complete(self.output, self.identity, self.read_sources(), given, self.progress)

    def _keys(self, rejections: Rejections) -> Iterator[int]:
        """Of all documents of the whole input, which all machines read alike from its begin."""
        whole = Corpus(self.sources, parts_of(self.sources, 0, 1), self.selection)
        if self.job.sequence_length is not None:
            encoder = self.plan.batch_encoder(self.encoder)
            for raw in whole.batches():
                encoded = encoder.encode(raw)
                rejections.extend(encoded.rejections)
                yield from encoded.keys.tolist()
            return
        for raw in whole.batches():
            yield from (one.key for one in self.selection.texts(raw, rejections))

    def _use_tokenizer(self, tokenizer_json: bytes, name: str) -> None:
        job = self.job
        self.plan = EncodingPlan(self.selection, tokenizer_json, job.eos, name, job.sequence_length)
        self.encoder = self.plan.text_encoder()

    def _check_each_kind(self) -> None:
        """A column that a kind of file lacks shows before anything is written."""
        first_of_kind: dict[str, int] = {}
        for index, source in enumerate(self.sources):
            first_of_kind.setdefault(Path(source.path).suffix, index)
        for index in first_of_kind.values():
            batches = self.sources[index].batches(Part(index), 0, self.selection.fields, Place())
            for raw in itertools.islice(batches, 1):
                next(iter(self.selection.documents(raw)), None)

    def begin(self) -> Split:
        """Of a job that starts anew."""
        self._check_each_kind()
        split = Split(self.job.validation_fraction)
        if self.given_tokenizer is not None:
            self._use_tokenizer(self.given_tokenizer, str(self.job.tokenizer))
        rejections = Rejections()
        split.ensure_both_sides(self._keys(rejections), rejections)
        if self.given_tokenizer is None:
            self.progress.begin(f"training a tokenizer of {self.job.vocab_size:,} tokens")
            texts = self.corpus.training_texts(
                split, self.job.tokenizer_bytes, self.progress.update
            )
            trained = train_tokenizer(texts, self.job.vocab_size, self.job.eos)
            self._use_tokenizer(trained, "the trained tokenizer")
        self.output.begin(is_resumed=False)
        self.output.write_tokenizer(self.encoder.json_bytes)
        return split

    def go_on(self, state: dict) -> Split:
        """Of a job that was interrupted."""
        self.output.begin(is_resumed=True)
        name = str(self.output.folder / "tokenizer.json")
        self._use_tokenizer(self.output.read_tokenizer(state["tokenizer_sha256"]), name)
        return Split(self.job.validation_fraction, state["forced_sides"])

    def encode(self, split: Split, state: dict | None) -> str:
        encoding = _Encoding(self, split, state)
        try:
            encoding.run()
            manifest = manifest_of(self, encoding.series, encoding.totals)
            indices = dict.fromkeys(part.source_index for part in self.corpus.parts)
            self.output.finish(manifest | {"sources": encoding.hashes.finish(list(indices))})
        finally:
            encoding.hashes.close()
        self.progress.end()
        return closing_line(self.job, encoding.series, encoding.totals)


class _Encoding:
    """The long part: batches to shards, with a journal."""

    def __init__(self, preparation: Preparation, split: Split, state: dict | None) -> None:
        self._preparation = preparation
        self._split = split
        self._part, self._place = place_of(state)
        self._share_done = 0.0 if state is None else state["share_done"]
        self.totals = Totals(None if state is None else state["totals"])
        self.series = {
            name: self._new_series(name, None if state is None else state["series"][name])
            for name in SPLITS
        }
        recorded = [] if state is None else state["sources"]
        self.hashes = SourceHashes(preparation.sources, recorded)

    def _new_series(self, name: str, state: dict | None) -> ShardSeries:
        job, encoder = self._preparation.job, self._preparation.encoder
        properties = ShardProperties(
            encoder.vocab_size,
            encoder.eos_id,
            encoder.sha256,
            source_label(self._preparation.sources),
            encoder.dtype,
            has_loss_mask=job.sequence_length is not None,
        )
        stem = self._preparation.output.shard_stem
        arguments = (job.output / name, stem, job.shard_tokens, properties)
        if job.sequence_length is None:
            return ShardSeries(*arguments, state)
        return ConversationSeries(*arguments, sequence_length=job.sequence_length, state=state)

    def run(self) -> None:
        preparation = self._preparation
        corpus, progress = preparation.corpus, preparation.progress
        progress.begin(f"encoding {len(corpus.parts)} files", self._share_done, self._num_tokens())
        self._write_journal()
        default = default_num_workers(corpus.num_bytes)
        num_workers = preparation.job.num_workers or default
        with WorkerPool(num_workers, preparation.plan, preparation.encoder) as pool:
            raw_batches = corpus.batches(self._part, self._place, self.hashes.begin)
            for batch in pool.map(raw_batches):
                self._add(batch)
                progress.update(self._share_done, self._num_tokens())
        for one in self.series.values():
            one.finish()

    def _num_tokens(self) -> int:
        return sum(one.token_count for one in self.series.values())

    def _add(self, batch: EncodedBatch) -> None:
        sides = self._split.are_validation(batch.keys)
        begin = 0
        for end, is_validation in zip(batch.ends.tolist(), sides.tolist(), strict=True):
            mask = None if batch.mask is None else batch.mask[begin:end]
            self.series[SPLITS[is_validation]].add(batch.ids[begin:end], mask)
            begin = end
        self.totals.add(batch)
        self._part, self._place = batch.raw.part_number, batch.raw.end
        self._share_done = self._preparation.corpus.share_done(batch.raw)
        is_due = time.monotonic() - self._last_journal >= _JOURNAL_EVERY_S
        if is_due or any(one.has_finished_shards for one in self.series.values()):
            self._write_journal()

    def _write_journal(self) -> None:
        self._preparation.journal.write(
            {
                "part": self._part,
                "record": self._place.record,
                "byte": self._place.byte,
                "share_done": self._share_done,
                "tokenizer_sha256": self._preparation.encoder.sha256,
                "forced_sides": self._split.forced,
                "series": {name: one.state() for name, one in self.series.items()},
                "totals": self.totals.state(),
                "sources": self.hashes.state(),
            }
        )
        for one in self.series.values():
            one.forget_finished()
        self._last_journal = time.monotonic()


def run(job: Job) -> str:
    """Does the job, goes on with it, or says that it is done; returns the closing line."""
    inputs, commit = list(job.inputs), None
    if job.dataset is not None:
        files, commit = job.dataset.download()
        inputs += files
    sources = find_sources(inputs)
    preparation = Preparation(job, sources, commit)
    output = preparation.output
    if not job.overwrite and preparation.is_complete():
        output.clean_up()
        done = f"{job.output} is complete: same input and settings, nothing to do"
        return merged_line(job, done)
    output.refuse_other_divisions()
    state = None if job.overwrite else preparation.journal.read()
    if state is None and not job.overwrite:
        output.refuse_unless_free(sources)
    split = preparation.begin() if state is None else preparation.go_on(state)
    return merged_line(job, preparation.encode(split, state))
