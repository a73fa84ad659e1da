"""The shards of one side of the split, one after the other, and what a journal needs to go on."""

from pathlib import Path

import numpy

from cplm_data.durable import make_folder, system_errors_at
from cplm_data.shards import ShardProperties, Spool, write_shard


class ShardSeries:
    """Appends documents to STEM00000.h5, STEM00001.h5, ... of one folder. A document is never
    split: one longer than a shard gets a longer shard."""

    def __init__(
        self,
        folder: Path,
        stem: str,
        shard_tokens: int,
        properties: ShardProperties,
        state: dict | None,
    ) -> None:
        self._folder = folder
        self._stem = stem
        self._shard_tokens = shard_tokens
        self._properties = properties
        self._finished: list[Spool] = []  # spools that the last journal still needs
        state = state or {"files": {}, "token_count": 0, "document_count": 0, "spool": None}
        self.files: dict[str, dict[str, int | str]] = state["files"]  # for the manifest
        self.token_count: int = state["token_count"]
        self.document_count: int = state["document_count"]
        make_folder(folder)
        self._spool = self._new_spool(state["spool"]) if state["spool"] else None

    @property
    def has_finished_shards(self) -> bool:
        """Since the last journal."""
        return bool(self._finished)

    @property
    def _open_tokens(self) -> int:
        return self._spool.lengths["tokens"] if self._spool else 0

    def _new_spool(self, lengths: dict[str, int] | None = None) -> Spool:
        path = self._folder / f"{self._stem}{len(self.files):05d}.h5"
        dtypes = self._properties.dtypes()
        if lengths is not None:
            return Spool(path, dtypes, lengths)
        spool = Spool(path, dtypes, dict.fromkeys(dtypes, 0))
        spool.append("document_offsets", numpy.zeros(1, dtype="<u8"))
        return spool

    def _make_room(self, num_tokens: int) -> None:
        """Ends the open shard when a document of so many tokens is too much for it."""
        if self._open_tokens and self._open_tokens + num_tokens > self._shard_tokens:
            self._finish_shard()

    def add(self, ids: numpy.ndarray, mask: numpy.ndarray | None = None) -> None:
        """One document, which ends with eos."""
        self._make_room(ids.size)
        self._append(ids, mask)

    def _append(self, ids: numpy.ndarray, mask: numpy.ndarray | None) -> None:
        self._spool = self._spool or self._new_spool()
        self._spool.append("tokens", ids)
        if mask is not None:
            self._spool.append("loss_mask", mask)
        end = numpy.array([self._spool.lengths["tokens"]], dtype="<u8")
        self._spool.append("document_offsets", end)
        self.token_count += ids.size
        self.document_count += 1

    def _finish_shard(self) -> None:
        spool = self._spool
        spool.close()
        entry = write_shard(spool, self._properties)
        self.files[f"{self._folder.name}/{spool.shard.name}"] = entry
        self._finished.append(spool)
        self._spool = None

    def finish(self) -> None:
        if self._open_tokens:
            self._finish_shard()

    def state(self) -> dict[str, object]:
        """For a journal that is written next: what of the open shard is on disk by then."""
        if self._spool:
            self._spool.sync()
        return {
            "files": self.files,
            "token_count": self.token_count,
            "document_count": self.document_count,
            "spool": self._spool.lengths if self._spool else None,
        }

    def forget_finished(self) -> None:
        """Once the journal, or the manifest, no longer needs the spools of finished shards."""
        for spool in self._finished:
            with system_errors_at(spool.shard):
                spool.remove()
        self._finished.clear()
