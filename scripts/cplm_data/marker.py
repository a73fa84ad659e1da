"""The marker that a job leaves in its output folder until it is done: it says that the folder is
the job's, and is locked while the job's process lives. Each of several machines has its own."""

import fcntl
import os
import re
from pathlib import Path
from typing import IO

from cplm_data.errors import PrepareError

_NAME = re.compile(r"\.preparing(\.\d+-of-(?P<world>\d+))?")


def _try_lock(path: Path) -> IO[bytes] | None:
    """None when another process has it."""
    while True:
        file = open(path, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # its job removed it since it was opened


class Marker:
    def __init__(self, folder: Path, share: str, world: int) -> None:
        self._folder = folder
        self._path = folder / f".preparing{share}"
        self._world = world
        self._file: IO[bytes] | None = None

    def exists(self) -> bool:
        return self._path.exists()

    def _is_of_other_job(self, path: Path) -> bool:
        match = _NAME.fullmatch(path.name)
        if match is None or path == self._path:
            return False
        return self._world == 1 or match["world"] is None or int(match["world"]) != self._world

    def of_other_jobs(self) -> list[Path]:
        """Not of the machines that share this one's job."""
        return sorted(filter(self._is_of_other_job, self._folder.glob(".preparing*")))

    def lock(self) -> None:
        """Leaves the marker, unless a process works here whose files this job must not touch."""
        was_there = self.exists()
        self._file = _try_lock(self._path)
        if self._file is None:
            raise self._taken(self._path)
        for path in self.of_other_jobs():
            other = _try_lock(path)
            if other is None:
                if not was_there:
                    self.remove()
                raise self._taken(path)
            other.close()

    def _taken(self, path: Path) -> PrepareError:
        return PrepareError(
            f"--output {self._folder}: another process is preparing this folder (it holds "
            f"{path.name}); wait for it to end, or name another folder"
        )

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
            self._file = None
