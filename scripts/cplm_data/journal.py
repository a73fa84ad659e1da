"""How far a job is, durably: after a kill at any instant it goes on from the last journal.

A journal is written after each finished shard and every few seconds. It names the place in the
input up to which all documents are in finished shards or in the spools of open ones (as long as it
says), so that nothing is lost or done twice.
"""

import json
import os
from pathlib import Path

from cplm_data.documents import Rejections
from cplm_data.durable import write_durably
from cplm_data.errors import ArgumentError, BadDataError, system_reason
from cplm_data.encoding import EncodedBatch
from cplm_data.sources import Place


class Totals:
    """What is counted over all batches."""

    def __init__(self, state: dict | None = None) -> None:
        state = state or {"text_bytes": 0, "dropped_special_ids": 0, "truncated": 0}
        self.text_bytes: int = state["text_bytes"]
        self.dropped_special_ids: int = state["dropped_special_ids"]
        self.truncated: int = state["truncated"]
        self.rejections = Rejections(state.get("rejected"))

    def add(self, batch: EncodedBatch) -> None:
        self.text_bytes += batch.num_text_bytes
        self.dropped_special_ids += batch.num_dropped_ids
        self.truncated += batch.num_truncated
        self.rejections.extend(batch.rejections)

    def state(self) -> dict[str, object]:
        return {
            "text_bytes": self.text_bytes,
            "dropped_special_ids": self.dropped_special_ids,
            "truncated": self.truncated,
            "rejected": self.rejections.summary(),
        }


class Journal:
    """`job` says which job it is of: settings and sources, by which another one is told."""

    def __init__(self, path: Path, job: dict[str, object]) -> None:
        self._path = path
        self._job = job

    def write(self, state: dict[str, object]) -> None:
        write_durably(self._path, json.dumps({"job": self._job} | state).encode())

    def read(self) -> dict | None:
        """The state to go on from; None without a journal."""
        if not self._path.exists():
            return None
        folder = self._path.parent
        try:
            state = json.loads(self._path.read_bytes())
            job = state["job"]
        except OSError as error:
            raise ArgumentError(f"{self._path}: cannot be read: {system_reason(error)}") from None
        except (ValueError, KeyError, TypeError):
            raise ArgumentError(f"{self._path}: damaged; give --overwrite to start over") from None
        if job != self._job:
            raise ArgumentError(
                f"--output {folder}: holds an interrupted job with {_difference(job, self._job)}; "
                "repeat that command to go on, name another folder, or start over by --overwrite"
            )
        self._check_files(state, folder)
        return state

    def _check_files(self, state: dict, folder: Path) -> None:
        for series in state["series"].values():
            for name, entry in series["files"].items():
                path = folder / name
                if not path.is_file() or path.stat().st_size != entry["size_bytes"]:
                    raise BadDataError(
                        f"{path}: expected the finished shard of the interrupted job, found "
                        f"{'another size' if path.exists() else 'nothing'}; "
                        "give --overwrite to start over"
                    )

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _difference(found: dict, expected: dict) -> str:
    """What differs first between two jobs, for a message."""
    for name in sorted(set(found["settings"]) | set(expected["settings"])):
        old, new = found["settings"].get(name), expected["settings"].get(name)
        if old != new:
            return f"other settings ({name}: {old!r} there, {new!r} now)"
    return "other input files, or files of other sizes"


def place_of(state: dict | None) -> tuple[int, Place]:
    """Number of the part, and the place in it, where reading goes on."""
    if state is None:
        return 0, Place()
    return state["part"], Place(state["record"], state["byte"])


def same_file(path: str, recorded: dict) -> bool:
    """Whether a source looks as it did when the journal was written."""
    now = os.stat(path)
    return now.st_size == recorded["size_bytes"] and now.st_mtime_ns == recorded["mtime_ns"]
