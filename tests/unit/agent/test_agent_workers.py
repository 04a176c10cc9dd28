"""Verbs get a thread when they need one, verbs that clean up even when all others hang, and what hangs is reported."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from tests.lab.switch.switch import wait_until
from userspace_cni.agent.workers import Job, Overloaded, Sizes, Workers

SECONDS = 60.0


class Gate:
    """Jobs that run until the test lets them."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.began: list[str] = []

    def job(self, verb: str = "ADD", container: str = "") -> Job:
        return Job(lambda: self._wait(container or verb), verb, container)

    def _wait(self, name: str) -> None:
        self.began.append(name)
        self._open.wait(SECONDS)

    def open(self) -> None:
        self._open.set()


@contextmanager
def hanging(workers: Workers) -> Iterator[Gate]:
    """Jobs of this gate hang within the block; afterwards there is no thread."""
    gate = Gate()
    try:
        yield gate
    finally:
        gate.open()
        assert workers.drain(SECONDS)
        workers.close()
        wait_until(lambda: workers.threads == 0, SECONDS)


def running(workers: Workers, number: int) -> None:
    """Wait until so many jobs run."""
    wait_until(lambda: workers.busy == number, SECONDS, f"{number} busy")


def done(workers: Workers, verb: str = "ADD") -> bool:
    """Wait for a job of this verb; whether it ran."""
    event = threading.Event()
    workers.submit(Job(event.set, verb))
    return event.wait(SECONDS)


def test_threads_come_with_the_work() -> None:
    """There is no thread before the first job, and one serves jobs that follow one another."""
    workers = Workers()
    assert workers.threads == 0
    for _ in range(20):
        assert done(workers)
        assert workers.drain(SECONDS)
    assert workers.threads == 1
    workers.close()


def test_a_burst_runs_at_once() -> None:
    """200 calls need 200 threads: they share transactions, and no call waits for another one's end."""
    workers = Workers()
    with hanging(workers) as gate:
        for _ in range(200):
            workers.submit(gate.job())
        wait_until(lambda: len(gate.began) == 200, SECONDS)
        assert (workers.busy, workers.queued, workers.threads) == (200, 0, 200)


@pytest.mark.parametrize("verb", ["DEL", "STATUS"])
def test_threads_are_reserved(verb: str) -> None:
    """When every ordinary thread hangs, verbs that clean up or report still run; the others wait."""
    workers = Workers(Sizes(general=3, reserved=2))
    with hanging(workers) as gate:
        for _ in range(3):
            workers.submit(gate.job())
        running(workers, 3)
        waiting = threading.Event()
        workers.submit(Job(waiting.set, "ADD"))
        assert done(workers, verb)
        assert done(workers, verb)
        assert not waiting.is_set()
        assert workers.queued == 1
        gate.open()
        assert waiting.wait(SECONDS)


def test_what_waits_runs_in_its_order() -> None:
    """A thread that becomes free takes the job that waits longest, whatever its verb."""
    workers = Workers(Sizes(general=1, reserved=0))
    with hanging(workers) as gate:
        workers.submit(gate.job())
        running(workers, 1)
        order: list[str] = []
        verbs = ["ADD", "DEL", "DEL", "ADD", "STATUS", "GC"]
        for verb in verbs:
            workers.submit(Job(lambda verb=verb: order.append(verb), verb))  # type: ignore[misc]
        gate.open()
        wait_until(lambda: len(order) == len(verbs), SECONDS)
        assert order == verbs


def test_too_much_is_refused() -> None:
    """A full queue answers at once, with an error that says what is busy."""
    workers = Workers(Sizes(general=2, reserved=1, queue=3))
    with hanging(workers) as gate:
        for _ in range(5):
            workers.submit(gate.job())
        running(workers, 2)
        with pytest.raises(Overloaded, match="2 calls are running and 3 waiting") as caught:
            workers.submit(gate.job())
        assert caught.value.code == 11


@pytest.mark.parametrize("error", [ValueError("bug"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_a_job_that_raises_ends_nothing(error: BaseException) -> None:
    """Its thread serves the next job."""
    workers = Workers(Sizes(general=1, reserved=0))

    def fail() -> None:
        raise error

    workers.submit(Job(fail, "ADD"))
    assert done(workers)
    assert workers.drain(SECONDS)
    assert (workers.threads, workers.dead, workers.busy) == (1, 0, 0)
    workers.close()


def test_stuck_jobs_are_reported() -> None:
    """The report has verb, container and seconds of every job over the limit, the longest first, and no other job."""
    workers = Workers()
    with hanging(workers) as gate:
        workers.submit(gate.job("ADD", "c1"))
        workers.submit(gate.job("DEL", "c2"))
        running(workers, 2)
        wait_until(lambda: len(workers.stuck(0.01)) == 2, SECONDS)
        first, second = workers.stuck(0.01)
        assert {(first.verb, first.container), (second.verb, second.container)} == {("ADD", "c1"), ("DEL", "c2")}
        assert first.seconds >= second.seconds > 0.01
        assert workers.stuck(3600) == []
    assert workers.stuck(0) == []


def test_idle_threads_end() -> None:
    """After a burst only a few threads stay, which still serve."""
    workers = Workers(Sizes(idle_s=0.05, keep=2))
    gate = Gate()
    for _ in range(50):
        workers.submit(gate.job())
    running(workers, 50)
    gate.open()
    wait_until(lambda: workers.threads == 2, SECONDS)
    assert workers.dead == 0
    assert done(workers)
    workers.close()
    wait_until(lambda: workers.threads == 0, SECONDS)


def test_reserved_threads_end_too() -> None:
    """Reserved threads end, too, when they are not needed."""
    workers = Workers(Sizes(general=1, reserved=4, idle_s=0.05, keep=1))
    with hanging(workers) as gate:
        workers.submit(gate.job())
        for _ in range(4):
            assert done(workers, "DEL")
        wait_until(lambda: workers.threads == 1, SECONDS)


def test_jobs_between_sleep_and_end_are_not_lost() -> None:
    """A job that arrives while an idle thread ends is still run."""
    workers = Workers(Sizes(general=4, reserved=1, idle_s=0.0005, keep=0))
    for number in range(2000):
        assert done(workers, "DEL" if number % 3 else "ADD")
    assert workers.drain(SECONDS)
    workers.close()


def test_draining_waits_for_what_runs() -> None:
    """A drain reports whether everything has ended, waiting jobs included."""
    workers = Workers(Sizes(general=1, reserved=0))
    with hanging(workers) as gate:
        workers.submit(gate.job())
        workers.submit(gate.job())
        running(workers, 1)
        assert not workers.drain(0.05)
        threading.Timer(0.05, gate.open).start()
        assert workers.drain(SECONDS)
        assert len(gate.began) == 2


def test_closed_workers_take_nothing() -> None:
    """After the end a job is refused and not forgotten."""
    workers = Workers()
    assert done(workers)
    workers.close()
    with pytest.raises(Overloaded, match="stopping"):
        workers.submit(Job(lambda: None, "ADD"))
    wait_until(lambda: workers.threads == 0, SECONDS)


def test_a_job_may_submit_another() -> None:
    """A job can submit a job: an undo begins on the thread of the call that it undoes."""
    workers = Workers(Sizes(general=1, reserved=0))
    event = threading.Event()
    workers.submit(Job(lambda: workers.submit(Job(event.set, "DEL")), "ADD"))
    assert event.wait(SECONDS)
    assert workers.drain(SECONDS)
    workers.close()


def test_jobs_have_the_context_in_which_the_workers_were_made() -> None:
    """The agent's log level holds on every thread, and what a job sets stays its own."""
    level = ContextVar("level", default="unset")
    level.set("debug")
    workers = Workers()
    level.set("changed later")
    seen: list[str] = []

    def look() -> None:
        seen.append(level.get())
        level.set("job's own")

    for _ in range(2):
        workers.submit(Job(look, "ADD"))
        assert workers.drain(SECONDS)
    assert seen == ["debug", "debug"]
    workers.close()


def test_a_thread_that_vanished_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ended without being removed counts as dead, by the kernel's list of threads."""
    workers = Workers()
    assert done(workers)
    assert workers.drain(SECONDS)
    assert workers.dead == 0

    def vanish(worker: object) -> bool:
        raise SystemExit

    monkeypatch.setattr(workers, "_proceed", vanish)
    workers.submit(Job(lambda: None, "ADD"))
    wait_until(lambda: workers.dead == 1, SECONDS)


def test_without_threads_jobs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel gives no thread at all, a job is refused; while one runs, it waits for that one."""
    start: Callable[..., int] = _thread.start_new_thread

    def refuse(*args: object) -> int:
        raise RuntimeError("can't start new thread")

    workers = Workers()
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(Overloaded, match="no thread can be started"):
        workers.submit(Job(lambda: None, "DEL"))
    assert workers.busy == 0
    monkeypatch.setattr(_thread, "start_new_thread", start)
    with hanging(workers) as gate:
        workers.submit(gate.job())
        running(workers, 1)
        monkeypatch.setattr(_thread, "start_new_thread", refuse)
        event = threading.Event()
        workers.submit(Job(event.set, "ADD"))
        gate.open()
        assert event.wait(SECONDS)
