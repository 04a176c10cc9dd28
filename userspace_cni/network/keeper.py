"""The thread of the agent that keeps the node's own network as it is wished.

It pursues the wishes at its start, when it is asked to (an object, an address of a NIC or the switch has changed), when a wish
that could not be met is due again, and on the agent's tick. No error may end the thread; nothing of it is on the path of a verb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.wishes import Standing, Wish
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.log import say
from userspace_cni.base.loops import Loop

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.steps import Step
    from userspace_cni.attachment.wishes import Plan, Wishes

BEAT_S: Final = 1.0
APART_S: Final = 0.2
"""Seconds between two pursuits that only events ask for: a NIC that comes and goes asks for many."""

Wished = Callable[[], tuple[Sequence[Wish], frozenset[str]]]
"""Reads all sources: the wishes, and the sources that are complete."""
Told = Callable[[Sequence[Standing]], None]


class Keeper(Loop):
    """The thread, which begins with a pursuit. What is applied when it is stopped stays: the next agent goes on from the records.

    `ask` it for a pursuit in which what failed a moment ago waits for its time. `told` gets what became of each wish, after each
    pursuit; it must not wait. `due` says once a second whether something that cannot `ask` (the switch, by its absence) wants a
    pursuit now, in which nothing waits for its time.
    """

    def __init__(self, wishes: Wishes, wished: Wished, tick_s: float, *, due: Callable[[], bool], told: Told) -> None:
        super().__init__("node-network", "keeping the node's network")
        self._wishes = wishes
        self._wished = wished
        self._tick_s = tick_s
        self._due = due
        self._told = told
        self._urged = False
        self._begun = self._ended = 0
        self._next = 0.0
        self.standings: tuple[Standing, ...] = ()
        """What became of each wish."""

    def urge(self) -> None:
        """Request a pursuit in which also what failed a moment ago is tried: for people. Never waits."""
        with self._wake:
            self._urged = True
            self.ask()

    def pursue(self, deadline: Deadline) -> tuple[Standing, ...]:
        """Urge a pursuit and wait for its end; what became of each wish. Raises Unavailable at the deadline."""
        self.urge()
        with self._wake:
            wanted = self._begun + 1  # the running one may have looked too early
            while self._ended < wanted:
                if self._stopping or not self._wake.wait(deadline.require("keeping the node's network")):
                    raise Unavailable("the node's network is not looked at within the time of this call", "see the agent's log")
            if self.problem:
                raise Unavailable(f"what the node is to have could not be looked at: {self.problem}", "see the agent's log")
            return self.standings

    def _run(self) -> None:
        while not self._stopping:
            self.beat = now = time.monotonic()
            with self._wake:
                asked, urged, self._asked, self._urged = self._asked, self._urged, False, False
            wanted = self._guarded(self._due)
            if asked or wanted or now >= min(self._next, self._wishes.next_due):
                self._begin()
                done = self._guarded(lambda: self._pursue(now=urged or wanted))  # noqa: B023 - called at once
                self._next = time.monotonic() + self._tick_s
                self._end(done=done)
            with self._wake:
                if not (self._stopping or self._asked):
                    self._wake.wait(BEAT_S)

    def _begin(self) -> None:
        with self._wake:
            self._begun += 1

    def _end(self, *, done: bool) -> None:
        with self._wake:
            self.problem = "" if done else self.problem
            self._ended = self._begun
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._stopping or self._urged, APART_S)

    def _pursue(self, *, now: bool) -> bool:
        wishes, complete = self._wished()
        wishes = [replace(each, plan=self._beating(each.plan)) for each in wishes]
        standings = self._wishes.pursue(wishes, complete, now=now)
        self.standings = standings
        self._told(standings)
        return True

    def _beating(self, plan: Plan) -> Plan:
        """The plan, which shows that the thread has come to it: a pursuit of many wishes may take long."""

        def steps(record: Record | None) -> tuple[Step, ...]:
            self.beat = time.monotonic()
            return plan(record)

        return steps

    def _guarded(self, work: Callable[[], bool]) -> bool:
        """What `work` returns; False, with the problem logged and kept, when it fails."""
        try:
            done = work()
        except Exception as error:  # noqa: BLE001 -- whatever it was, the next round may do better
            say("error", "a round of keeping the node's network failed", error=repr(error))
            self.problem = repr(error)
            return False
        return done
