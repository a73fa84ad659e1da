"""One run's conversion, step by step."""

import sys
from pathlib import Path

from cplm_tensorboard.errors import ConvertError
from cplm_tensorboard.event_folder import EventFolder
from cplm_tensorboard.metrics_file import MetricsFile


class Conversion:
    def __init__(self, run: Path, folder: Path, follow: bool):
        self._metrics = MetricsFile(run / "metrics.jsonl")
        self._run, self._folder, self._follow = run, folder, follow
        self._output: EventFolder | None = None  # made once the run has written something
        if not follow and not self._metrics.path.exists():
            raise ConvertError(
                f"{self._metrics.path} does not exist: expected the folder of a run that `cplm train` "
                "has started (--follow waits for it)",
                2,
            )

    def update(self) -> None:
        try:
            is_new, events = self._metrics.read()
        except FileNotFoundError:
            return  # not yet there, or a fresh run takes the place of a deleted one
        if self._output is None:
            self._output = EventFolder(self._folder)
        if not is_new:
            self._output.append(events)
            return
        before = len(self._output.events)
        taken_back = self._output.replace(events)
        told = f", {taken_back} of them taken back" if taken_back else ""
        print(f"{self._run}: {len(events)} lines, {before} were there{told}: {self._folder}", flush=True)
        if not self._follow and self._metrics.has_torn_line():
            print(f"{self._metrics.path}: the last line is torn and was left out", file=sys.stderr)

    def close(self) -> None:
        if self._output is not None:
            self._output.close()
