"""Files that appear whole or not at all, and survive a power cut once they have their name."""

import hashlib
import os
from pathlib import Path

from cplm_data.errors import PrepareError, system_reason

PARTIAL_SUFFIX = ".partial"


def sha256_of_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrepareError(f"{path}: cannot make the folder: {system_reason(error)}") from None


def write_durably(path: Path, contents: bytes) -> None:
    """Writes beside `path`, fsyncs, and gives the file its name."""
    aside = path.with_name(f".{path.name}{PARTIAL_SUFFIX}")
    try:
        try:
            with open(aside, "wb") as file:
                file.write(contents)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            _fsync_folder(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PrepareError(f"{path}: cannot be written: {system_reason(error)}") from None
