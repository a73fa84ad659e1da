"""Finding the input files that paths, folders and patterns name."""

import glob
import os
import stat

from cplm_data.errors import ArgumentError, BadDataError, system_reason
from cplm_data.sources import SUFFIXES, Source


def _files_below(folder: str) -> list[str]:
    """Files of the known kinds in a folder and its subfolders, hidden ones left out."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(parent, name)
            for name in names
            if name.endswith(SUFFIXES) and not name.startswith(".")
        ]
    return found


def _expanded(pattern: str) -> list[str]:
    """Folders that exist as they are written are taken so, whatever signs their names hold."""
    literal, rest = os.path.expanduser(pattern), ""
    while literal and not os.path.exists(literal):
        literal, _, last = literal.rpartition("/")
        rest = f"/{last}{rest}"
        if not literal:
            rest = rest if pattern.startswith("/") else rest[1:]
    return glob.glob(glob.escape(literal) + rest, recursive=True) if rest else [literal]


def _matches(pattern: str) -> list[str]:
    paths = _expanded(pattern)
    if not paths:
        raise ArgumentError(f"--input {pattern}: no such file, and no file matches it")
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += _files_below(path)
        elif path.endswith(SUFFIXES):
            found.append(path)
        else:
            raise ArgumentError(f"--input {pattern}: {path}: expected one of {', '.join(SUFFIXES)}")
    if not found:
        raise ArgumentError(f"--input {pattern}: no {', '.join(SUFFIXES)} file in that folder")
    return found


def find_sources(patterns: list[str]) -> list[Source]:
    """The files that the patterns name, each once, sorted by path."""
    by_real_path: dict[str, str] = {}
    for path in sorted({path for pattern in patterns for path in _matches(pattern)}):
        by_real_path.setdefault(os.path.realpath(path), path)
    sources: list[Source] = []
    for path in by_real_path.values():
        try:
            source = Source(path)
        except OSError as error:
            raise BadDataError(f"{path}: cannot be read: {system_reason(error)}") from None
        if not stat.S_ISREG(source.stat.st_mode):
            raise ArgumentError(
                f"--input: {source.name}: expected a regular file (it is read more than once)"
            )
        sources.append(source)
    return sources
