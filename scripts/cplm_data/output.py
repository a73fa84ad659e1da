"""The output folder: what is ours in it, whether the job is done there, and its manifest.

A job first leaves a marker file, then shards and tokenizer.json, and last manifest.json. So a
folder without manifest is unfinished however the job ended, and the marker says it was ours.
"""

import fcntl
import json
import os
from pathlib import Path

from cplm_data.durable import PARTIAL_SUFFIX, make_folder, sha256_of_file, write_durably
from cplm_data.errors import ArgumentError, PrepareError, system_reason
from cplm_data.sources import Source

SPLITS = ("train", "validation")
_MARKER = ".preparing"
_MANIFEST = "manifest.json"
_TOKENIZER = "tokenizer.json"
_OURS = frozenset([*SPLITS, _MARKER, _MANIFEST, _TOKENIZER])
# What may stand beside the shards though it is not ours: notes on where the text came from.
_NOTES = frozenset(["SOURCES.txt"])


def to_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def describe_sources(sources: list[Source]) -> list[dict[str, object]]:
    """Path, size and sha256 of each input file."""
    try:
        return [
            {"path": s.name, "size_bytes": s.size_bytes, "sha256": sha256_of_file(s.path)}
            for s in sources
        ]
    except OSError as error:
        raise PrepareError(f"{error.filename}: cannot be read: {system_reason(error)}") from None


def _contents(sources: list[dict[str, object]]) -> list[tuple[object, object]]:
    """Equal bytes are equal input, wherever the files lie."""
    return [(source["size_bytes"], source["sha256"]) for source in sources]


class OutputFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _manifest(self) -> dict | None:
        try:
            value = json.loads((self.folder / _MANIFEST).read_bytes())
        except (OSError, ValueError):
            return None
        needed = {"settings": dict, "sources": list, "files": dict}
        is_ours = isinstance(value, dict) and all(
            isinstance(value.get(k), t) for k, t in needed.items()
        )
        return value if is_ours else None

    def _foreign_entry(self, sources: list[Source]) -> str | None:
        """A name in the folder that is neither ours nor an input."""
        inputs = [os.path.realpath(source.path) for source in sources]
        for entry in sorted(self.folder.iterdir()):
            real = os.path.realpath(entry)
            is_input = any(path == real or path.startswith(real + os.sep) for path in inputs)
            is_leftover = entry.name.startswith(".") and entry.name.endswith(PARTIAL_SUFFIX)
            if entry.name not in _OURS | _NOTES and not is_input and not is_leftover:
                return entry.name
        return None

    def _has_results(self) -> bool:
        names = [self.folder / _MANIFEST, self.folder / _TOKENIZER]
        return any(path.exists() for path in names) or any(
            any((self.folder / split).iterdir())
            for split in SPLITS
            if (self.folder / split).is_dir()
        )

    def is_complete(self, settings: dict[str, object], sources: list[dict[str, object]]) -> bool:
        """Whether this very job is done here: its manifest, and each file with its size."""
        manifest = self._manifest()
        if manifest is None or manifest["settings"] != settings:
            return False
        if _contents(manifest["sources"]) != _contents(sources):
            return False
        try:
            return all(
                (self.folder / name).stat().st_size == file["size_bytes"]
                for name, file in manifest["files"].items()
            )
        except OSError:
            return False

    def refuse_unless_free(self, sources: list[Source]) -> None:
        """Exit 2 when the folder holds anything but our inputs and an interrupted job of ours."""
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise ArgumentError(f"--output {self.folder}: expected a folder, found a file")
        foreign = self._foreign_entry(sources)
        if foreign is not None:
            raise ArgumentError(
                f"--output {self.folder}: holds {foreign!r}, which is not of this job; "
                "name an empty folder or give --overwrite"
            )
        manifest = self._manifest()
        was_interrupted = manifest is None and (self.folder / _MARKER).exists()
        if was_interrupted or not self._has_results():
            return
        state = (
            "of unknown origin" if manifest is None else "from other inputs or settings, or damaged"
        )
        raise ArgumentError(
            f"--output {self.folder}: holds shards ({state}); "
            "name another folder, or give --overwrite to replace them"
        )

    def begin(self) -> None:
        """Leaves the marker, locked while this process lives; removes earlier results."""
        make_folder(self.folder)
        try:
            self._lock()
            (self.folder / _MANIFEST).unlink(missing_ok=True)
            (self.folder / _TOKENIZER).unlink(missing_ok=True)
            for folder in (self.folder, *(self.folder / split for split in SPLITS)):
                for path in folder.glob(f".*{PARTIAL_SUFFIX}"):
                    path.unlink()
            for split in SPLITS:
                for path in (self.folder / split).glob("*.h5"):
                    path.unlink()
        except OSError as error:
            raise PrepareError(
                f"{error.filename}: cannot be written or removed: {system_reason(error)}"
            ) from None

    def _lock(self) -> None:
        self._marker = open(self.folder / _MARKER, "ab")
        try:
            fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrepareError(
                f"--output {self.folder}: another process is preparing this folder"
            ) from None

    def write_tokenizer(self, contents: bytes) -> None:
        write_durably(self.folder / _TOKENIZER, contents)

    def finish(self, manifest: dict[str, object]) -> None:
        write_durably(self.folder / _MANIFEST, to_json(manifest))
        (self.folder / _MARKER).unlink(missing_ok=True)
