"""The event files of a run, and what TensorBoard sees in them."""

import fcntl
import os
import re
import struct
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cplm_tensorboard.errors import ConvertError
from cplm_tensorboard.metrics_file import Event, float32_bits


class EventFolder:
    """What TensorBoard sees of a run: the events of all files of a folder, less those taken back."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConvertError(f"{folder}: another to_tensorboard writes there; stop it first") from error
        self._writer = None
        self._is_begun = False  # TensorBoard takes only a second beginning for a restart
        self.events: list[Event] = []
        for path in sorted(folder.glob("events.out.tfevents.*")):
            self._read_back(path)

    def _read_back(self, path: Path) -> None:
        for record in RawEventFileLoader(str(path)).Load():  # ends at a torn record, as TensorBoard does
            event = event_pb2.Event.FromString(record)
            if event.session_log.status == event_pb2.SessionLog.START:
                if self._is_begun:
                    self.events = [kept for kept in self.events if kept[0] < event.step]
                self._is_begun = True
            elif event.HasField("summary"):
                values = ((value.tag, float32_bits(value.simple_value)) for value in event.summary.value)
                self.events.append((event.step, tuple(values)))

    def append(self, events: list[Event]) -> None:
        if not events:
            return
        if not self._is_begun:
            self._begin(0)
        for step, values in events:
            summary = summary_pb2.Summary(
                value=[
                    summary_pb2.Summary.Value(tag=tag, simple_value=struct.unpack("<f", bits)[0])
                    for tag, bits in values
                ]
            )
            self._add(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
        self.events += events

    def replace(self, wanted: list[Event]) -> int:
        """Makes the events those of `wanted`; returns how many had to be taken back."""
        kept = 0
        while kept < min(len(self.events), len(wanted)) and self.events[kept] == wanted[kept]:
            kept += 1
        taken_back = len(self.events) - kept
        if taken_back:
            kept = self._take_back(kept)
        self.append(wanted[kept:])
        return taken_back

    def _take_back(self, kept: int) -> int:
        """Of the first `kept` events those stay that lie before every step taken back."""
        step = min(event[0] for event in self.events[kept:])
        while any(event[0] >= step for event in self.events[:kept]):
            kept = next(i for i, event in enumerate(self.events) if event[0] >= step)
            step = min(event[0] for event in self.events[kept:])
        self._begin(step)
        self.events = self.events[:kept]
        return kept

    def _begin(self, step: int) -> None:
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(wall_time=time.time(), step=step, session_log=start))
        self._writer.flush()
        self._is_begun = True

    def _add(self, event) -> None:
        if self._writer is None:
            self._wait_for_a_later_name()
            self._writer = EventFileWriter(str(self.folder))
        self._writer.add_event(event)

    def _wait_for_a_later_name(self) -> None:
        """Files are read in the order of their names, which begin with the second they are made in."""
        names = (re.match(r"events\.out\.tfevents\.(\d{10})\.", name) for name in os.listdir(self.folder))
        newest = max((int(name[1]) for name in names if name), default=0)
        if newest > time.time() + 60:
            raise ConvertError(
                f"{self.folder}: an event file is named for second {newest}, now is {int(time.time())}: "
                "a clock was wrong; remove the folder and run this again"
            )
        while int(time.time()) <= newest:
            time.sleep(0.05)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        os.close(self._lock)
