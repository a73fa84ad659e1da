"""Runs `cplm` as a child and waits for it, also through an interruption: a run saves and ends first."""

import signal
import subprocess
from pathlib import Path

from studies.errors import StudyError

_STOPPED = 75


def find_program(root: Path, given: Path | None) -> Path:
    choices = [given] if given else [root / "build" / preset / "cplm" for preset in ("cuda", "release")]
    for path in choices:
        if path.is_file():
            return path.resolve()
    raise StudyError(
        f"{' and '.join(map(str, choices))}: not there; build the program (scripts/quickstart does), or name "
        "one by --program",
        2,
    )


class Program:
    """Every call's console goes to `log`."""

    def __init__(self, path: Path, log: Path):
        self._path, self._log = path, log

    def version(self) -> str:
        try:
            found = subprocess.run([self._path, "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise StudyError(f"{self._path}: cannot be run: {error}", 2) from None
        return found.stdout.strip()

    def run(self, *arguments: object) -> None:
        with open(self._log, "ab") as log:
            log.write(("\n$ cplm " + " ".join(map(str, arguments)) + "\n").encode())
            log.flush()
            begin = log.tell()
            code, stopped = self._wait(list(map(str, arguments)), log)
        if stopped or code == _STOPPED:
            raise StudyError("stopped; the same command goes on from here", _STOPPED)
        if code != 0:
            raise StudyError(f"cplm {arguments[0]}: {self._last_line(begin)} (all of it: {self._log})", max(code, 1))

    def _wait(self, arguments: list[str], log) -> tuple[int, bool]:
        """(exit code, whether a signal came meanwhile). A terminal tells the child of Ctrl-C itself."""
        stops: list[int] = []
        before = {
            number: signal.signal(number, lambda number, _frame: stops.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            child = subprocess.Popen([self._path, *arguments], stdout=log, stderr=log)
            told = 0
            while True:
                try:
                    return child.wait(timeout=0.5), bool(stops)
                except subprocess.TimeoutExpired:
                    if signal.SIGTERM in stops and told == 0:
                        told = 1
                        child.terminate()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _last_line(self, begin: int) -> str:
        with open(self._log, "rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else "no message"
