"""Threads that stay: one engine that has each of them work in rounds, from its start to its end.

A subclass says what one round does, and in how many seconds the next one is due. The engine waits and is woken, keeps rounds
apart, backs off after failures, and says of each failure once what it was. No error may end a thread, for nothing would do its
work any more. Of equal lines each thread writes the first, and later ones with their count. A process that lives for one verb has
none of these threads, and does not import this.
"""

from __future__ import annotations

import math
import random
import threading
import time
from abc import ABC, abstractmethod

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import limit_repeats, say
from userspace_cni.base.repeats import Repeats
from userspace_cni.base.threads import start


class TryAgain(Exception):
    """A round could not do its work, which is to be expected: it is tried again after the back-off, without a log line."""


class Loop(ABC):
    """A daemon thread from `start` to `stop`; a stopped one cannot be started again. Safe to use from any thread.

    `does`: what it does, in the words of its problems, as "flushes records". `_wake` guards what a subclass shares with others.
    """

    failing = "a round failed; it is tried again: "
    """What the log says before the reason, when rounds begin to fail."""
    end_s = 0.0
    """How long `stop` waits for the thread: what hangs in a request ends with the process."""
    first_s: float | None = 0.0
    """From the start to the first round, unless it is asked for; None: until then."""
    apart_s = 0.0
    """Between two rounds at least, unless one is urged."""
    settle_s = 0.0
    """From when a round is asked for to its begin: what is told meanwhile is part of it."""
    back_off = BackOff()
    limit_s = 0.0
    """A round that takes longer is stuck; 0 where any may."""
    late = ""
    """The message about a stuck one; the duration follows."""

    def __init__(self, name: str, does: str) -> None:
        self.does = does
        self._wake = threading.Condition()
        self._asked = self._urged = self._stopping = False
        self._thread = threading.Thread(target=self._work, daemon=True, name=name)
        self.beat = time.monotonic()
        """When its last round began, or what it said of it since: what takes long shows so that it goes on."""
        self.busy = False
        """Whether a round is going on."""
        self.problem = ""
        """Why it cannot do its work now; "" while it can, as far as is known."""
        self._noted = False
        self._rounds_begun = self._rounds_ended = 0
        self.failure = ""
        """What the last round raised, in words; "" where it raised nothing."""
        # only the thread uses these
        self._pause_s = 0.0
        self._rested = 0.0
        """When the next round may begin, on the monotonic clock, unless it is urged."""
        self._was_asked = self._was_urged = False
        """Whether the round was asked for, or urged: else its time had come."""
        self._served = True
        """Whether the round did what it was asked for; a round that did not says so, and those who wait for it go on waiting."""

    def start(self) -> None:
        """Start the thread; returns at once. Raises Unavailable."""
        start(self._thread, f"starting the thread that {self.does}")

    def stop(self, within_s: float = threading.TIMEOUT_MAX) -> None:
        """Begin no further round, and wait a moment for the end of this one, no longer than `within_s`. Never fails."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        wait_s = min(self.end_s, within_s)
        if wait_s and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def problems(self) -> list[str]:
        """That it is dead, or that its round is stuck; nothing while it works, and when it was stopped."""
        if not self.alive:
            return [] if self._stopping else [f"the thread that {self.does} is dead"]
        stuck = self.limit_s and self.busy and time.monotonic() - self.beat > self.limit_s
        return [f"{self.late} for {self.limit_s:.0f} s"] if stuck else []

    def ask(self) -> None:
        """Have a round soon: something has changed. Never waits and never fails."""
        with self._wake:
            self._asked = True
            self._wake.notify_all()

    def urge(self) -> None:
        """Have a round at once, whatever it would rest. Never waits and never fails."""
        with self._wake:
            self._urged = True
            self.ask()

    def await_round(self, seconds: float) -> bool:
        """Ask for a round, and wait this long for the end of one that begins from now on: the running one may have looked too
        early. Whether there was one that did its work."""
        with self._wake:
            wanted = self._rounds_begun + 1
            self.ask()
            return self._wake.wait_for(lambda: self._rounds_ended >= wanted or self._stopping, seconds) and not self._stopping

    @abstractmethod
    def _round(self) -> float | None:
        """Do what is due; in how many seconds the next round is, None when it is to be asked for.

        What it raises is its failure: `problem`, said once, until a round succeeds.
        """

    def _end(self) -> None:  # noqa: B027 -- most have none
        """The last thing that the thread does."""

    def _note(self, problem: str) -> None:
        """Keep the problem ("" for none), and log it when one begins."""
        self._keep("warning", problem, "")

    def _rest(self, seconds: float) -> bool:
        """Wait, whatever is asked meanwhile, until a round is urged; whether to go on."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping or self._urged, seconds)
            return not self._stopping

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with limit_repeats(Repeats()):
            try:
                wait_s = self.first_s
                while self._await_due(wait_s):
                    wait_s = self._have_round()
                self._end()
            except Exception as error:  # noqa: BLE001 -- who stops it goes on
                self._fail(error)
            finally:
                if not self._stopping:
                    say("error", f"the thread that {self.does} is dead")

    def _await_due(self, wait_s: float | None) -> bool:
        """Wait until the thread has rested and a round is asked for, or so long if none is; whether to go on."""
        due = math.inf if wait_s is None else time.monotonic() + wait_s
        with self._wake:
            while not (self._stopping or self._urged):
                left_s = max(self._rested, 0.0 if self._asked else due) - time.monotonic()
                if left_s <= 0:
                    break
                self._wake.wait(min(left_s, threading.TIMEOUT_MAX))
        return self._rest(self.settle_s)

    def _have_round(self) -> float | None:
        """Have a round; in how many seconds the next one is due."""
        self.beat = time.monotonic()
        with self._wake:
            self._rounds_begun += 1
            self._was_asked, self._was_urged, self._asked, self._urged = self._asked, self._urged, False, False
        self.busy = self._served = True
        wait_s: float | None = 0.0
        try:
            wait_s = self._round()
        except TryAgain:
            self._pause_s = self.back_off.after(self._pause_s)
        except Exception as error:  # noqa: BLE001 -- whatever it was, the next round may do better
            self._pause_s = self.back_off.after(self._pause_s)
            if not self._stopping:
                self._fail(error)
        else:
            self._pause_s = 0.0
            if self.problem == self.failure:
                self._note("")
            self.failure = ""
        self.busy = False
        with self._wake:
            if self._served:
                self._rounds_ended = self._rounds_begun
                self._wake.notify_all()
        if self._pause_s:
            spread = random.SystemRandom().uniform(1 - self.back_off.spread, 1)  # spreads nodes
            self._rested = time.monotonic() + self._pause_s * spread
        else:
            self._rested = time.monotonic() + self.apart_s
        return wait_s

    def _fail(self, error: Exception) -> None:
        expected = isinstance(error, UserspaceError)
        self.failure = str(error) if expected else f"{type(error).__name__}: {error}"
        self._keep("warning" if expected else "error", self.failure, self.failing)

    def _keep(self, level: str, problem: str, said: str) -> None:
        self.problem, self._noted = problem, bool(problem) and (self._noted or say(level, f"{said}{problem}"))
