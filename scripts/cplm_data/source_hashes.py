"""The sha256 of each source, computed by a thread of its own while the source is read: on a network
file system its bytes are then fetched once."""

import concurrent.futures

from cplm_data.durable import sha256_of_file
from cplm_data.errors import ArgumentError, BadDataError, system_reason
from cplm_data.journal import same_file
from cplm_data.sources import Source


def hash_of(source: Source) -> str:
    try:
        return sha256_of_file(source.path)
    except OSError as error:
        raise BadDataError(f"{source.name}: cannot be read: {system_reason(error)}") from None


class SourceHashes:
    def __init__(self, sources: list[Source], recorded: list[dict] | None = None) -> None:
        """`recorded`: entries of a journal, checked against the files as they are now."""
        self._sources = sources
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._pending: dict[int, concurrent.futures.Future[str]] = {}
        self._known: dict[int, str] = {}
        for entry in recorded or []:
            self._check(sources[entry["index"]], entry)
            if entry["sha256"] is not None:
                self._known[entry["index"]] = entry["sha256"]

    def _check(self, source: Source, entry: dict) -> None:
        if same_file(source.path, entry):
            return
        if entry["sha256"] is None or hash_of(source) != entry["sha256"]:
            raise ArgumentError(
                f"{source.name}: changed since the interrupted job read it; "
                "give --overwrite to start over"
            )

    def begin(self, index: int) -> None:
        if index not in self._known and index not in self._pending:
            self._pending[index] = self._thread.submit(hash_of, self._sources[index])

    def state(self) -> list[dict[str, object]]:
        """An entry for each source whose reading has begun."""
        for index in [index for index, future in self._pending.items() if future.done()]:
            self._known[index] = self._pending.pop(index).result()
        return [
            self._entry(index) | {"index": index, "mtime_ns": self._sources[index].stat.st_mtime_ns}
            for index in sorted([*self._known, *self._pending])
        ]

    def _entry(self, index: int) -> dict[str, object]:
        source = self._sources[index]
        return {
            "path": source.name,
            "size_bytes": source.size_bytes,
            "sha256": self._known.get(index),
        }

    def finish(self, indices: list[int]) -> list[dict[str, object]]:
        """Entries of the manifest, once all have been computed."""
        for index in indices:
            self.begin(index)
            if index in self._pending:
                self._known[index] = self._pending.pop(index).result()
        return [self._entry(index) for index in indices]

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
