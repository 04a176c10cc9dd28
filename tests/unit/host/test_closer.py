"""A thread closes what the kernel is slow to close, and neither the owner nor the process waits for it."""

from __future__ import annotations

import subprocess
import sys
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from types import SimpleNamespace

import pytest

from tests.host.places import in_child
from userspace_cni.host.netlink import closer as tested
from userspace_cni.host.netlink.closer import Closer

SECONDS = 60.0
ENDING = "import sys; from userspace_cni.host.netlink.closer import Closer; Closer(3600).close(sys.stdin); print('ended')"


class Slow:
    """A socket that tells who has closed it."""

    def __init__(self) -> None:
        self.closed_by: SimpleQueue[Thread] = SimpleQueue()

    def close(self) -> None:
        self.closed_by.put(current_thread())


def test_another_thread_closes() -> None:
    """Each thing is closed by another thread than its owner's, those of a second burst, too."""
    closer = Closer(0.01)
    for _ in ("first burst", "second burst"):
        things = [Slow(), Slow()]
        for thing in things:
            closer.close(thing)
        assert all(thing.closed_by.get(timeout=SECONDS) is not current_thread() for thing in things)


def test_the_process_does_not_wait() -> None:
    """A process ends normally although something would take an hour to close."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")


def test_a_fork_amid_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked while a thread held the lock can still close things."""
    closer, amid, go_on = Closer(0.01), Event(), Event()

    def monotonic() -> float:
        amid.set()
        assert go_on.wait(SECONDS)
        return 0.0

    def work() -> None:
        monkeypatch.undo()
        thing = Slow()
        closer.close(thing)
        assert thing.closed_by.get(timeout=SECONDS)

    monkeypatch.setattr(tested, "time", SimpleNamespace(monotonic=monotonic))
    holder = Thread(target=closer.close, args=[Slow()])
    holder.start()
    assert amid.wait(SECONDS)
    try:
        assert in_child(work) == 0
    finally:
        go_on.set()
        holder.join()
