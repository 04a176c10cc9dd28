"""The threads that run the verbs: as many as there is work for, up to a bound, and a few for DEL and STATUS alone.

A verb that hangs (a dead switch, a slow disk, an IPAM plugin) holds its thread until its own deadline. When all of them hang, DEL
and STATUS still get one: `reserved` threads take nothing else, so that a node in trouble can be cleaned and examined.

Idle threads are used last in, first out, so that few stay in use and the others end. A thread is started without waiting for it
to run: `threading.Thread.start` waits, which measured 16 ms with 2 busy threads and 350 ms with 20, on the thread that accepts
connections. A job that raises must never end its thread; a thread that has ended all the same is found in the kernel's list.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from userspace_cni.base.errors import Unavailable
from userspace_cni.base.log import learn, say

SWIFT: Final = frozenset({"DEL", "STATUS"})
"""The verbs that the reserved threads take."""
_TASKS: Final = Path("/proc/self/task")


class Overloaded(Unavailable):
    """All threads are busy and the queue is full, or the workers are closed."""


@dataclass(frozen=True)
class Job:
    """A function to run once. `verb` decides which threads may run it (SWIFT); verb and container are for log and problems."""

    run: Callable[[], object]
    verb: str
    container: str = ""


@dataclass(frozen=True)
class Stuck:
    """A job that has been running for `seconds`."""

    verb: str
    container: str
    seconds: float


@dataclass(frozen=True)
class Sizes:
    """Threads for all verbs and for SWIFT ones only, jobs that may wait, seconds before an idle thread ends, idle ones kept."""

    general: int = 256
    reserved: int = 8
    queue: int = 1024
    idle_s: float = 30.0
    keep: int = 4


class _Worker:
    """One thread. The lock of `Workers` guards its fields."""

    __slots__ = ("job", "reserved", "since", "tid", "wake")

    def __init__(self, job: Job, *, reserved: bool) -> None:
        self.reserved = reserved
        self.job: Job | None = job
        self.since = time.monotonic()
        self.tid = 0
        self.wake = _thread.allocate_lock()
        self.wake.acquire()


class Workers:
    """Runs jobs on daemon threads. Every method may be called from any thread, `submit` also from a job.

    Each job runs in its own copy of the context variables (such as the log level) with which this object was made.
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        self._sizes = sizes or Sizes()
        self._context = copy_context()
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._workers: set[_Worker] = set()
        self._idle: dict[bool, list[_Worker]] = {False: [], True: []}
        self._queues: dict[bool, deque[tuple[int, Job]]] = {False: deque(), True: deque()}
        self._started = {False: 0, True: 0}
        self._active = 0
        self._queued_ever = 0
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run the job as soon as a thread is free. Raises Overloaded."""
        swift = job.verb in SWIFT
        with self._lock:
            if self._closed:
                raise Overloaded(f"{job.verb}: the agent is stopping", "try again when it runs")
            if self._give(job, reserved=False) or (swift and self._give(job, reserved=True)):
                return
            if not self._started[False] and not (swift and self._started[True]):
                raise Overloaded(f"{job.verb}: no thread can be started", "see the limits on processes: ulimit -u, pids.max")
            if self._queued() >= self._sizes.queue:
                what = f"{job.verb}: {self._active} calls are running and {self._queued()} waiting"
                raise Overloaded(what, "the agent's /metrics and log say what they wait for")
            self._queued_ever += 1
            self._queues[swift].append((self._queued_ever, job))

    @property
    def busy(self) -> int:
        with self._lock:
            return self._active

    @property
    def queued(self) -> int:
        with self._lock:
            return self._queued()

    @property
    def threads(self) -> int:
        """Threads, idle ones among them."""
        with self._lock:
            return len(self._workers)

    def stuck(self, limit_s: float) -> list[Stuck]:
        """The jobs that have been running for longer than that, longest first."""
        now = time.monotonic()
        with self._lock:
            running = [(worker.job, now - worker.since) for worker in self._workers if worker.job is not None]
        found = [Stuck(job.verb, job.container, seconds) for job, seconds in running if seconds > limit_s]
        return sorted(found, key=lambda stuck: -stuck.seconds)

    @property
    def dead(self) -> int:
        """Threads that ended unexpectedly. No cause is known; after one, the workers cannot be trusted."""
        with self._lock:
            tids = [worker.tid for worker in self._workers if worker.tid]
        return sum(not (_TASKS / str(tid)).exists() and self._still_ours(tid) for tid in tids)

    def drain(self, seconds: float) -> bool:
        """Wait until nothing runs or waits; False when something still does after `seconds`."""
        with self._settled:
            return self._settled.wait_for(lambda: not self._active and not self._queued(), seconds)

    def close(self) -> None:
        """Take no more jobs, drop those that wait, and let idle threads end. Does not wait for the busy ones."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.clear()
            for idle in self._idle.values():
                while idle:
                    idle.pop().wake.release()

    # -- under the lock ---------------------------------------------------------------------------------------------------

    def _give(self, job: Job, *, reserved: bool) -> bool:
        """Hand the job to an idle thread of that kind, or to a new one."""
        idle = self._idle[reserved]
        if idle:
            worker = idle.pop()
            worker.job, worker.since = job, time.monotonic()
            self._active += 1
            worker.wake.release()
            return True
        most = self._sizes.reserved if reserved else self._sizes.general
        if self._started[reserved] >= most:
            return False
        worker = _Worker(job, reserved=reserved)
        try:
            _thread.start_new_thread(self._work, (worker,))
        except RuntimeError as error:  # the kernel has no more threads for us (pids cgroup, RLIMIT_NPROC)
            say("warning", "the agent cannot have another thread", threads=len(self._workers), error=error)
            return False
        self._workers.add(worker)
        self._started[reserved] += 1
        self._active += 1
        return True

    def _queued(self) -> int:
        return len(self._queues[False]) + len(self._queues[True])

    def _next(self, *, reserved: bool) -> Job | None:
        """The job that has waited longest of those that the thread may run."""
        swift, other = self._queues[True], self._queues[False]
        if reserved or not other:
            return swift.popleft()[1] if swift else None
        return (swift if swift and swift[0][0] < other[0][0] else other).popleft()[1]

    # -- a worker's thread ------------------------------------------------------------------------------------------------

    def _work(self, worker: _Worker) -> None:
        worker.tid = threading.get_native_id()
        while (job := worker.job) is not None:
            context = self._context.copy()
            context.run(learn, verb=job.verb, container=job.container)
            try:
                context.run(job.run)
            except BaseException as error:  # noqa: BLE001 -- no error of a job may end its thread
                context.run(say, "error", "a job failed", error=repr(error))
            del context, job  # what they refer to must not live until the next one
            if not self._proceed(worker):
                return

    def _proceed(self, worker: _Worker) -> bool:
        """Wait for the worker's next job; False when it has to end."""
        with self._lock:
            worker.job, worker.since = self._next(reserved=worker.reserved), time.monotonic()
            if worker.job is not None:
                return True
            self._active -= 1
            if self._closed:
                return self._leave(worker)
            self._idle[worker.reserved].append(worker)
            if not self._active and not self._queued():
                self._settled.notify_all()
        while not worker.wake.acquire(timeout=self._sizes.idle_s):
            with self._lock:
                idle = self._idle[worker.reserved]
                if worker in idle and len(idle) > (0 if worker.reserved else self._sizes.keep):
                    idle.remove(worker)
                    return self._leave(worker)
        with self._lock:
            return worker.job is not None or self._leave(worker)

    def _leave(self, worker: _Worker) -> bool:
        worker.tid = 0
        self._workers.discard(worker)
        self._started[worker.reserved] -= 1
        self._settled.notify_all()
        return False

    def _still_ours(self, tid: int) -> bool:
        with self._lock:
            return any(worker.tid == tid for worker in self._workers)
