"""Files that appear whole or not at all, and survive a power cut once they have their name."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from cplm_data.errors import PrepareError, system_reason

PARTIAL_SUFFIX = ".partial"


def sha256_of_file(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def system_errors_at(path: Path) -> Iterator[None]:
    """Says which of our files could not be written."""
    try:
        yield
    except OSError as error:
        raise PrepareError(f"{path}: cannot be written: {system_reason(error)}") from None


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrepareError(f"{path}: cannot make the folder: {system_reason(error)}") from None


def publish(aside: Path, path: Path) -> None:
    """Gives a finished file its name."""
    fsync(aside)
    os.replace(aside, path)
    fsync(path.parent)


def write_durably(path: Path, contents: bytes, writer: str = "") -> None:
    """Writes beside `path`, then gives the file its name; `writer` keeps several writers apart."""
    aside = path.with_name(f".{path.name.removeprefix('.')}{writer}{PARTIAL_SUFFIX}")
    with system_errors_at(path):
        try:
            aside.write_bytes(contents)
            publish(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
