"""Encodes batches on all cores, and gives the results in the order of the batches.

Threads that share one tokenizer (its tables and its cache of words fit a processor's caches once,
not once a core): the library leaves Python's lock while it encodes. Beyond a few threads that lock
would be short, so many workers are divided among processes. Such a process reads from pipes that
only its owner holds, so it ends when the owner ends, however that happens. Only the owner writes
files.
"""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import queue
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

from cplm_data.encoding import BatchEncoder, EncodedBatch, EncodingPlan
from cplm_data.errors import PrepareError
from cplm_data.sources import RawBatch
from cplm_data.tokenizer import TextEncoder

# Below this much input, a second worker gains nothing.
_BYTES_PER_WORKER = 1 << 22
# Read ahead: at least so many batches and so much text, work for the time in which the owner writes
# and checks a finished shard.
_BATCHES_AHEAD_PER_WORKER = 3
_BYTES_AHEAD_PER_WORKER = 3 << 20
_THREADS_PER_PROCESS = 4


def default_num_workers(num_bytes: int) -> int:
    """One a core this process may use, fewer for a small input."""
    return max(1, min(len(os.sched_getaffinity(0)), num_bytes // _BYTES_PER_WORKER))


def _one_core_a_thread() -> None:
    """The threads are ours; the library's own would be too many."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _answer(connection: Connection, encoder: BatchEncoder) -> None:
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


def _serve(connections: list[Connection], plan: EncodingPlan) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's to answer
    _one_core_a_thread()
    encoder = plan.batch_encoder(plan.text_encoder())
    threads = [threading.Thread(target=_answer, args=(one, encoder)) for one in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """A process that is interrupted while it starts would show its own traceback: what is started
    here never sees an interruption, and the owner sees it afterwards."""
    multiprocessing.resource_tracker.ensure_running()  # else it is started here and unblocks it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerPool:
    def __init__(self, num_workers: int, plan: EncodingPlan, encoder: TextEncoder) -> None:
        """`encoder`: the plan's, as there is one already."""
        self._num_workers = num_workers
        self._text_encoder = encoder
        self._encoder = plan.batch_encoder(encoder)
        self._processes: dict[Connection, multiprocessing.Process] = {}
        self._idle: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._threads = concurrent.futures.ThreadPoolExecutor(num_workers)
        _one_core_a_thread()
        if num_workers > _THREADS_PER_PROCESS:
            with _interrupts_wait():
                self._start_processes(plan)

    def _start_processes(self, plan: EncodingPlan) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "pyarrow.parquet", "tokenizers"])
        for first in range(0, self._num_workers, _THREADS_PER_PROCESS):
            num_threads = min(_THREADS_PER_PROCESS, self._num_workers - first)
            pipes = [context.Pipe() for _ in range(num_threads)]
            theirs = [pipe[1] for pipe in pipes]
            process = context.Process(target=_serve, args=(theirs, plan), daemon=True)
            process.start()
            for ours, other in pipes:
                other.close()
                self._processes[ours] = process
                self._idle.put(ours)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        self._text_encoder.cancel()
        self._threads.shutdown(cancel_futures=True)
        for connection, process in self._processes.items():
            process.join()
            connection.close()

    def _encode(self, raw: RawBatch) -> EncodedBatch:
        return self._encode_elsewhere(raw) if self._processes else self._encoder.encode(raw)

    def _encode_elsewhere(self, raw: RawBatch) -> EncodedBatch:
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

    def _wants_more(self, sizes: collections.deque[int]) -> bool:
        """`sizes`: bytes of the batches that are read and not yet taken."""
        return (
            len(sizes) < _BATCHES_AHEAD_PER_WORKER * self._num_workers
            or sum(sizes) < _BYTES_AHEAD_PER_WORKER * self._num_workers
        )

    def map(self, batches: Iterable[RawBatch]) -> Iterator[EncodedBatch]:
        """Reads ahead; an error of reading comes after all that was read before it."""
        source = iter(batches)
        waiting: collections.deque[concurrent.futures.Future[EncodedBatch]] = collections.deque()
        sizes: collections.deque[int] = collections.deque()  # of those waiting
        failure: PrepareError | None = None
        is_at_end = False
        while waiting or not is_at_end:
            while not is_at_end and self._wants_more(sizes):
                try:
                    raw = next(source, None)
                except PrepareError as error:
                    raw, failure = None, error
                is_at_end = raw is None
                if raw is not None:
                    waiting.append(self._threads.submit(self._encode, raw))
                    sizes.append(raw.num_bytes)
            if waiting:
                sizes.popleft()
                yield waiting.popleft().result()
        if failure is not None:
            raise failure
