"""Processes that encode batches, and the results in the order of the batches.

A worker reads from a pipe that only its owner holds, so it ends when the owner ends, however that
happens. Only the owner writes files. Each worker uses one core.
"""

import collections
import concurrent.futures
import multiprocessing
import os
import queue
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

from cplm_data.encoding import EncodedBatch, EncodingPlan
from cplm_data.errors import PrepareError
from cplm_data.sources import RawBatch
from cplm_data.tokenizer import TextEncoder

# Below this much input, starting a process costs more than it gives.
_BYTES_PER_WORKER = 1 << 22
_BATCHES_AHEAD_PER_WORKER = 3


def default_num_workers(num_bytes: int) -> int:
    """One a core this process may use, but none for a small input; 0: no process of its own."""
    wanted = min(len(os.sched_getaffinity(0)), num_bytes // _BYTES_PER_WORKER)
    return wanted if wanted > 1 else 0


def _serve(connection: Connection, plan: EncodingPlan) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's to answer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = plan.batch_encoder(plan.text_encoder())
    try:
        while True:
            raw = connection.recv()
            try:
                result = encoder.encode(raw)
            except Exception as error:  # raised again by the owner
                result = error
            connection.send(result)
    except (EOFError, ConnectionError):
        return


class WorkerPool:
    """No process at all with 0 workers: batches are then encoded here, one after the other."""

    def __init__(self, num_workers: int, plan: EncodingPlan, encoder: TextEncoder) -> None:
        """`encoder`: the plan's, as there is one already."""
        self._num_workers = num_workers
        self._encoder = None if num_workers else plan.batch_encoder(encoder)
        self._processes: dict[Connection, multiprocessing.Process] = {}
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._threads = concurrent.futures.ThreadPoolExecutor(max(num_workers, 1))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "tokenizers"])
        for _ in range(num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, plan), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process
            self._idle.put(ours)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for connection, process in self._processes.items():
            process.join()
            connection.close()

    def _encode(self, raw: RawBatch) -> EncodedBatch:
        connection = self._idle.get()
        try:
            connection.send(raw)
            result = connection.recv()
        except (EOFError, OSError):
            process = self._processes[connection]
            process.join()
            end = f"by signal {-process.exitcode}" if process.exitcode < 0 else "by itself"
            raise PrepareError(
                f"a worker process ended {end} (out of memory?); give fewer --workers and run "
                "again, it goes on where it was"
            ) from None
        finally:
            self._idle.put(connection)
        if isinstance(result, Exception):
            raise result
        return result

    def map(self, batches: Iterable[RawBatch]) -> Iterator[EncodedBatch]:
        if self._encoder is not None:
            yield from map(self._encoder.encode, batches)
            return
        waiting: collections.deque[concurrent.futures.Future[EncodedBatch]] = collections.deque()
        for raw in batches:
            waiting.append(self._threads.submit(self._encode, raw))
            if len(waiting) >= _BATCHES_AHEAD_PER_WORKER * self._num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
