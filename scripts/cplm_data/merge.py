"""The manifest of a job that several machines did, from the piece that each has left.

The machine that finishes last finds all pieces and writes manifest.json; two that finish at once
write the same bytes. `--merge` does it where the pieces were brought together later.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from cplm_data.documents import Rejections
from cplm_data.durable import sha256_of_file, write_durably
from cplm_data.errors import ArgumentError, BadDataError
from cplm_data.output import MANIFEST, SPLITS, TOKENIZER, read_manifest, to_json

# What the pieces of all machines have alike, and what a difference is one of.
_COMMON = {
    "settings": "settings",
    "input": "input files",
    "tokenizer": "tokenizers",
    "versions": "packages",
}
_PIECE = re.compile(r"manifest\.(\d+)-of-(\d+)\.json")


def _pieces(folder: Path) -> dict[tuple[int, int], Path]:
    """By (rank, world)."""
    found = {path: _PIECE.fullmatch(path.name) for path in sorted(folder.glob("manifest.*.json"))}
    return {(int(m[1]), int(m[2])): path for path, m in found.items() if m}


def missing_ranks(folder: Path, world: int) -> list[int]:
    pieces = _pieces(folder)
    return [rank for rank in range(world) if (rank, world) not in pieces]


def _listed(ranks: list[int]) -> str:
    """[1] -> rank 1, [0, 2] -> ranks 0 and 2"""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _first_difference(odd: dict, usual: dict) -> str:
    name = next(one for one in {**usual, **odd} if odd.get(one) != usual.get(one))
    return f"{name}: {odd.get(name)!r} instead of {usual.get(name)!r}"


def _refuse_differences(folder: Path, manifests: list[dict]) -> None:
    """Names the machines that did another job than most did (of as many, than rank 0 did)."""
    for group, what in _COMMON.items():
        ranks_by_value: dict[str, list[int]] = {}
        for rank, manifest in enumerate(manifests):
            value = json.dumps(manifest[group], sort_keys=True)
            ranks_by_value.setdefault(value, []).append(rank)
        usual, *others = sorted(ranks_by_value.values(), key=len, reverse=True)
        if others:
            odd = sorted(rank for ranks in others for rank in ranks)
            difference = _first_difference(manifests[odd[0]][group], manifests[usual[0]][group])
            raise BadDataError(
                f"{folder}: {_listed(odd)} had other {what} than {_listed(usual)} ({difference}); "
                f"run the command of {_listed(odd)} again with --overwrite and the files, settings "
                f"and packages of {_listed(usual)}"
            )


def _read_pieces(folder: Path) -> list[dict]:
    pieces = _pieces(folder)
    worlds = sorted({world for _, world in pieces})
    if len(worlds) != 1:
        found = "none" if not worlds else f"those of jobs of {' and '.join(map(str, worlds))}"
        raise ArgumentError(
            f"--merge {folder}: expected the manifest pieces of one job, found {found}"
        )
    missing = missing_ranks(folder, worlds[0])
    if missing:
        raise ArgumentError(
            f"--merge {folder}: of {worlds[0]} machines these have not finished: "
            f"{', '.join(map(str, missing))}"
        )
    manifests: list[dict] = []
    for path in pieces.values():
        manifest = read_manifest(path)
        if manifest is None:
            raise BadDataError(f"{path}: damaged; run that machine's command again")
        manifests.append(manifest)
    _refuse_differences(folder, manifests)
    return manifests


def _sum_counts(parts: Iterable[dict]) -> dict:
    total: dict = {}
    for part in parts:
        for name, value in part.items():
            is_group = isinstance(value, dict)
            total[name] = (
                _sum_counts([total.get(name, {}), value])
                if is_group
                else total.get(name, 0) + value
            )
    return total


def _check_files(folder: Path, files: dict[str, dict], tokenizer_sha256: str) -> None:
    for name, entry in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["size_bytes"]:
            raise BadDataError(
                f"{path}: expected {entry['size_bytes']:,} bytes, found "
                f"{format(path.stat().st_size, ',') if path.exists() else 'no file'}"
            )
    present = {f"{s}/{path.name}" for s in SPLITS for path in (folder / s).glob("*.h5")}
    if present != set(files):
        raise BadDataError(
            f"{folder / min(present - set(files))}: not of this job; remove it from the folder"
        )
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file() or sha256_of_file(tokenizer) != tokenizer_sha256:
        raise BadDataError(f"{tokenizer}: expected the tokenizer of the shards; copy it there")


def _sources(manifests: list[dict]) -> list[dict]:
    """A file that two machines share stands once."""
    by_path: dict[str, dict] = {}
    for source in (source for manifest in manifests for source in manifest["sources"]):
        if by_path.setdefault(source["path"], source) != source:
            raise BadDataError(
                f"{source['path']}: two machines read different contents; run the job again"
            )
    return list(by_path.values())


def merge(folder: Path, writer: str = "") -> str:
    """Writes manifest.json; returns the closing line."""
    manifests = _read_pieces(folder)
    files = {name: entry for manifest in manifests for name, entry in manifest["files"].items()}
    _check_files(folder, files, manifests[0]["tokenizer"]["sha256"])
    rejections = Rejections()
    for manifest in manifests:
        rejections.extend(Rejections(manifest["rejected"]))
    whole = manifests[0] | {
        "counts": _sum_counts(manifest["counts"] for manifest in manifests),
        "files": dict(sorted(files.items())),
        "rejected": rejections.summary(),
        "sources": _sources(manifests),
    }
    del whole["rank"]
    write_durably(folder / MANIFEST, to_json(whole), writer)
    tokens = sum(whole["counts"][split]["tokens"] for split in SPLITS)
    return (
        f"{folder}: the shares of {len(manifests)} machines are complete, {tokens:,} tokens in "
        f"{len(files)} shards"
    )
