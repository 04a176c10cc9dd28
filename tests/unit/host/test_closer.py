"""What the kernel is slow to close is closed by a thread, and keeps neither its owner nor the process waiting."""

from __future__ import annotations

import subprocess
import sys
from queue import SimpleQueue
from threading import Thread, current_thread

from userspace_cni.host.closer import Closer

SECONDS = 30.0
ENDING = "import sys; from userspace_cni.host.closer import Closer; Closer(3600).close(sys.stdin); print('ended')"


class Slow:
    """A socket that tells who has closed it."""

    def __init__(self) -> None:
        self.closed_by: SimpleQueue[Thread] = SimpleQueue()

    def close(self) -> None:
        """Close it."""
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
    """A process ends in good order although something waits to be closed for an hour."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("ended\n", "")
