"""Threads that stay: each works in rounds from its start to its end, waits in between, and can be woken.

No error may end one, for nothing would do its work any more; so `_run` of each catches what its rounds raise. What fails in one
round fails in the next ones, too: so of equal lines each thread writes the first, and later ones with their count. A process
that lives for one verb has none of them, and does not import this.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod

from userspace_cni.base.log import counted, say
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.threads import start


class Loop(ABC):
    """A daemon thread from `start` to `stop`; a stopped one cannot be started again. Safe to use from any thread.

    `purpose`: what it is for, told where no thread can be started. `end_s`: how long `stop` waits for it. A subclass says in
    `_run` what it does until `_stopping`; `_wake` guards what it shares with others, and is told of each change.
    """

    def __init__(self, name: str, purpose: str, end_s: float = 0.0) -> None:
        self._purpose = purpose
        self._end_s = end_s
        self._wake = threading.Condition()
        self._asked = self._stopping = False
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self.beat = time.monotonic()
        """When its last round began, where its rounds say so."""
        self.problem = ""
        """Why it cannot do its work now; "" while it can, as far as is known."""
        self._noted = False

    def start(self) -> None:
        """Start the thread; returns at once. Raises Unavailable."""
        start(self._thread, self._purpose)

    def stop(self) -> None:
        """Begin nothing more, and wait a moment for the end: what hangs in a request ends with the process. Never fails."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._end_s and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._end_s)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def ask(self) -> None:
        """Have a round soon: something has changed. Never waits and never fails."""
        with self._wake:
            self._asked = True
            self._wake.notify_all()

    def _work(self) -> None:
        with counted(Repeats()):
            self._run()

    @abstractmethod
    def _run(self) -> None:
        """The thread's work."""

    def _rest(self, seconds: float) -> bool:
        """Wait, whatever is asked meanwhile; whether to go on."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping, seconds)
            return not self._stopping

    def _await_asked(self, seconds: float | None = None) -> bool:
        """Wait until it is asked, for so long at most; whether to go on. What is asked from now on is for another round."""
        with self._wake:
            self._wake.wait_for(lambda: self._asked or self._stopping, seconds)
            self._asked = False
            return not self._stopping

    def _note(self, problem: str, said: str = "") -> None:
        """Keep the problem ("" for none), and log it, with `said` before it, when one begins."""
        self.problem, self._noted = problem, bool(problem) and (self._noted or say("warning", f"{said}{problem}"))


def longer(pause_s: float, least_s: float, most_s: float) -> float:
    """The pause after another failure: twice the last one, 0 for none, within these bounds."""
    return min(max(2 * pause_s, least_s), most_s)
