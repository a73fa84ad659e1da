"""Steps of a study: commands, several at once, each run to its end once. A step that ended is not run
again; one that was interrupted is, and what it runs goes on by itself.

FOLDER/NAME.log: all that the step printed; FOLDER/NAME.json: its command, whether it ended, and the seconds
of wall clock and processor that it took, over all attempts that ended or were stopped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from studies.errors import StudyError
from studies.study import write_whole

_STOPPED = 75
_POLL_S = 0.2


@dataclass(frozen=True)
class Step:
    """command: its first word is `cplm`, `python` (this one), or a program. after: steps that must have ended."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()


@dataclass
class _Running:
    step: Step
    child: subprocess.Popen  # kept: of one that is forgotten, the next Popen would take the exit status
    begin: float
    log_begin: int


class StepRunner:
    def __init__(self, folder: Path, program: Path, at_once: int, say):
        self._folder, self._at_once, self._say = folder, at_once, say
        self._programs = {"cplm": str(program), "python": sys.executable}
        self._running: dict[int, _Running] = {}
        self._failed: StudyError | None = None
        self._stops: list[int] = []
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, steps: list[Step]) -> None:
        """Returns when all have ended; the first that fails stops the others, which save and end."""
        done = {step.name for step in steps if self._record(step)["done"]}
        waiting = [step for step in steps if step.name not in done]
        before = {
            number: signal.signal(number, lambda number, _frame: self._stops.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        told = False
        try:
            while self._running or (waiting and not self._ending()):
                self._start_ready(waiting, done)
                time.sleep(_POLL_S)
                done |= self._collect()
                if self._ending() and not told:
                    told = True
                    self._end_all()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._stops:
            raise StudyError("stopped; the same command goes on from here", _STOPPED)
        if self._failed:
            raise self._failed

    def seconds(self, steps: list[Step]) -> dict[str, float]:
        records = [self._record(step) for step in steps]
        return {kind: sum(record[kind] for record in records) for kind in ("wall_s", "processor_s")}

    def _ending(self) -> bool:
        return bool(self._stops) or self._failed is not None

    def _record(self, step: Step) -> dict:
        path = self._folder / f"{step.name}.json"
        if not path.exists():
            return {"command": list(step.command), "done": False, "wall_s": 0.0, "processor_s": 0.0}
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["command"] != list(step.command):
            raise StudyError(f"{path}: the step was made by another command ({' '.join(record['command'])}); "
                             "delete the file to make it anew, or give another --out", 2)  # fmt: skip
        return record

    def _start_ready(self, waiting: list[Step], done: set[str]) -> None:
        for step in list(waiting):
            if self._ending() or len(self._running) >= self._at_once:
                return
            if done.issuperset(step.after):
                waiting.remove(step)
                self._start(step)

    def _start(self, step: Step) -> None:
        self._say(step.name)
        command = [self._programs.get(step.command[0], step.command[0]), *step.command[1:]]
        with open(self._folder / f"{step.name}.log", "ab") as log:
            log.write(("\n$ " + " ".join(step.command) + "\n").encode())
            log.flush()
            begin = log.tell()
            # A group of its own: Ctrl-C reaches it through us, with all that it started.
            child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self._running[child.pid] = _Running(step, child, time.monotonic(), begin)

    def _collect(self) -> set[str]:
        ended = set()
        for pid, running in list(self._running.items()):
            found, status, usage = os.wait4(pid, os.WNOHANG)
            if found == 0:
                continue
            del self._running[pid]
            code = running.child.returncode = os.waitstatus_to_exitcode(status)
            self._keep(running, usage.ru_utime + usage.ru_stime, code == 0)
            if code == 0:
                ended.add(running.step.name)
            elif not self._ending():
                self._failed = self._failure(running, code)
        return ended

    def _keep(self, running: _Running, processor_s: float, done: bool) -> None:
        record = self._record(running.step)
        record["done"] = done
        record["wall_s"] += time.monotonic() - running.begin
        record["processor_s"] += processor_s
        write_whole(self._folder / f"{running.step.name}.json", json.dumps(record, indent=1) + "\n")

    def _failure(self, running: _Running, code: int) -> StudyError:
        path = self._folder / f"{running.step.name}.log"
        with open(path, "rb") as log:
            log.seek(running.log_begin)
            lines = log.read().decode(errors="replace").strip().splitlines() or ["no message"]
        if code < 0:
            lines.append(f"ended by signal {-code}")
        return StudyError(f"{running.step.name}: {lines[-1].removeprefix('error: ')} (all of it: {path})", max(code, 1))

    def _end_all(self) -> None:
        for pid in self._running:
            os.killpg(pid, signal.SIGTERM)
