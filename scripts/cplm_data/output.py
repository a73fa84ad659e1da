"""The output folder: what is ours in it, whether the job is done there, and its manifest.

A job first leaves a marker file, then shards, tokenizer.json and a journal, and last its manifest.
So a folder without manifest is unfinished however the job ended, and the marker says it was ours.
Of several machines each has its own marker, journal, shards and piece of the manifest here.
"""

import hashlib
import json
import os
import re
from pathlib import Path

from cplm_data.durable import PARTIAL_SUFFIX, make_folder, write_durably
from cplm_data.errors import ArgumentError, PrepareError, system_reason
from cplm_data.marker import Marker
from cplm_data.sources import Source

SPLITS = ("train", "validation")
MANIFEST = "manifest.json"
MANIFEST_GROUPS = ("settings", "input", "versions", "tokenizer", "counts", "files", "rejected")
TOKENIZER = "tokenizer.json"
_OURS = re.compile(
    r"(train|validation|tokenizer\.json|manifest\.json|manifest\.\d+-of-\d+\.json"
    r"|\.preparing(\.\d+-of-\d+)?|\.journal(\.\d+-of-\d+)?\.json)"
)
# What may stand beside the shards though it is not ours: notes on where the text came from.
_NOTES = frozenset(["SOURCES.txt"])


def to_json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def read_manifest(path: Path) -> dict | None:
    """None when there is none, or none of ours."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    kinds = dict.fromkeys(MANIFEST_GROUPS, dict) | {"sources": list}
    is_ours = isinstance(value, dict) and all(isinstance(value.get(k), t) for k, t in kinds.items())
    return value if is_ours else None


class OutputFolder:
    def __init__(self, folder: Path, rank: int = 0, world: int = 1) -> None:
        self.folder = folder
        self.world = world
        self._share = "" if world == 1 else f".{rank:03d}-of-{world:03d}"
        self.manifest_path = folder / f"manifest{self._share}.json"
        self.journal_path = folder / f".journal{self._share}.json"
        self._marker = Marker(folder, self._share, world)
        self.shard_stem = "shard_" if world == 1 else f"shard_{rank:03d}-of-{world:03d}_"

    def _foreign_entry(self, sources: list[Source]) -> str | None:
        """A name in the folder that is neither ours nor an input."""
        inputs = [os.path.realpath(source.path) for source in sources]
        for entry in sorted(self.folder.iterdir()):
            real = os.path.realpath(entry)
            is_input = any(path == real or path.startswith(real + os.sep) for path in inputs)
            is_leftover = entry.name.startswith(".") and entry.name.endswith(PARTIAL_SUFFIX)
            is_known = _OURS.fullmatch(entry.name) or entry.name in _NOTES
            if not is_known and not is_input and not is_leftover:
                return entry.name
        return None

    def _shards(self) -> list[Path]:
        return [path for split in SPLITS for path in sorted((self.folder / split).glob("*.h5"))]

    def _has_results(self) -> bool:
        """Of an earlier job; other machines' shares of this job do not count."""
        if self.world == 1:
            names = [self.folder / MANIFEST, self.folder / TOKENIZER]
            return any(path.exists() for path in names) or bool(self._shards())
        ours = [path for path in self._shards() if path.name.startswith(self.shard_stem)]
        return self.manifest_path.exists() or bool(ours)

    def manifest_of_job(self, job: dict[str, object], sources: list[Source]) -> dict | None:
        """The manifest of this very job (settings and input) when its files have the sizes it says;
        their contents are not looked at."""
        manifest = read_manifest(self.manifest_path)
        if manifest is None or any(manifest.get(name) != value for name, value in job.items()):
            return None
        sizes = [source.size_bytes for source in sources]
        recorded = [source["size_bytes"] for source in manifest["sources"]]
        return manifest if recorded == sizes else None

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
        manifest = read_manifest(self.manifest_path)
        was_interrupted = manifest is None and self._marker.exists() and not self._other_shard()
        if was_interrupted or not self._has_results():
            return
        state = (
            "of unknown origin" if manifest is None else "from other inputs or settings, or damaged"
        )
        raise ArgumentError(
            f"--output {self.folder}: holds shards ({state}); "
            "name another folder, or give --overwrite to replace them"
        )

    def _other_shard(self) -> Path | None:
        """One that is no share of a job of so many machines."""
        share = "" if self.world == 1 else rf"\d{{3}}-of-{self.world:03d}_"
        own = re.compile(rf"shard_{share}\d+\.h5")
        return next((path for path in self._shards() if not own.fullmatch(path.name)), None)

    def refuse_other_divisions(self) -> None:
        """Shares of one job and of another do not mix, and no machine may remove another's."""
        path = None if self.world == 1 else self._other_shard()
        if path is not None:
            raise ArgumentError(
                f"--output {self.folder}: holds {path.parent.name}/{path.name}, which is not "
                f"of a job of {self.world} machines; name an empty folder"
            )

    def begin(self, is_resumed: bool) -> None:
        """Leaves the marker, locked while this process lives; removes earlier results."""
        make_folder(self.folder)
        try:
            self._marker.lock()
            self.manifest_path.unlink(missing_ok=True)
            (self.folder / MANIFEST).unlink(missing_ok=True)
            if not is_resumed:
                self._remove_results()
        except OSError as error:
            raise PrepareError(
                f"{error.filename}: cannot be written or removed: {system_reason(error)}"
            ) from None

    def _remove_results(self) -> None:
        self.journal_path.unlink(missing_ok=True)
        if self.world == 1:
            (self.folder / TOKENIZER).unlink(missing_ok=True)
            journals = self.folder.glob(".journal.*-of-*.json")
            pieces = self.folder.glob("manifest.*-of-*.json")
            for path in (*journals, *pieces, *self._marker.of_other_jobs(), *self._shards()):
                path.unlink()
        for path in self._shards():
            if path.name.startswith(self.shard_stem):
                path.unlink()
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Partial files, other machines' apart."""
        stem = "" if self.world == 1 else self.shard_stem
        for split in SPLITS:
            for path in (self.folder / split).glob(f".{stem}*{PARTIAL_SUFFIX}"):
                path.unlink()
        for path in self.folder.glob(f".*{PARTIAL_SUFFIX}"):
            if self._share in path.name:
                path.unlink()

    def write_tokenizer(self, contents: bytes) -> None:
        write_durably(self.folder / TOKENIZER, contents, self._share)

    def read_tokenizer(self, expected_sha256: str) -> bytes:
        path = self.folder / TOKENIZER
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise ArgumentError(
                f"{path}: cannot be read: {system_reason(error)}; give --overwrite to start over"
            ) from None
        if hashlib.sha256(contents).hexdigest() != expected_sha256:
            raise ArgumentError(
                f"{path}: changed since the interrupted job wrote it; "
                "give --overwrite to start over"
            )
        return contents

    def finish(self, manifest: dict[str, object]) -> None:
        write_durably(self.manifest_path, to_json(manifest))
        self.clean_up()

    def clean_up(self) -> None:
        """What only an unfinished job needs."""
        self.remove_leftovers()
        self.journal_path.unlink(missing_ok=True)
        self._marker.remove()
