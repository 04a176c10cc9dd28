"""The thread of the agent that keeps the node's own network as it is desired.

It reconciles the specs at its start, when it is asked to (an object, an address of a NIC or the switch has changed), when a spec
that could not be met is due again, and on the agent's tick. No error may end the thread; nothing of it is on the path of a verb.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.specs import Spec, SpecStatus
from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.loops import Loop

if TYPE_CHECKING:
    from userspace_cni.attachment.records import Record
    from userspace_cni.attachment.specs import Plan, Specs
    from userspace_cni.attachment.steps import Step

BEAT_S: Final = 1.0
APART_S: Final = 0.2
"""Seconds between two rounds that only events ask for: a NIC that comes and goes asks for many."""

ROUND_S: Final = 300.0
"""A round that takes longer than this is stuck: a spec has 20 s, and goes back in as many."""

SpecsNow = Callable[[], tuple[Sequence[Spec], frozenset[str]]]
"""Reads all sources: the specs, and the sources that are complete."""
Told = Callable[[Sequence[SpecStatus]], None]


class Keeper(Loop):
    """The thread, which begins with a round. What is applied when it is stopped stays: the next agent goes on from the records.

    `ask` it for a round in which what failed a moment ago waits for its time; in one that is urged, for people, it does not wait.
    `told` gets what became of each spec, after each round; it must not wait. `due` says whether something that cannot `ask` (the
    switch, by its absence) wants a round now, in which nothing waits for its time; it is asked once a second, unless it says
    None: there is nothing of that kind.
    """

    failing = "a round of keeping the node's network failed: "
    apart_s = APART_S
    back_off = BackOff(BEAT_S, BEAT_S)
    limit_s = ROUND_S
    late = "keeping the node's network has not ended"

    def __init__(self, specs: Specs, desired: SpecsNow, tick_s: float, *, due: Callable[[], bool | None], told: Told) -> None:
        super().__init__("node-network", "keeps the node's network")
        self._specs = specs
        self._desired = desired
        self._tick_s = tick_s
        self._due = due
        self._told = told
        self._next = 0.0
        self._now = False
        """Whether in the next round nothing waits for its time."""
        self.statuses: tuple[SpecStatus, ...] = ()

    def reconcile(self, deadline: Deadline) -> tuple[SpecStatus, ...]:
        """Urge a round and wait for its end; what became of each spec. Raises Unavailable at the deadline."""
        with self._wake:
            self.urge()
            ended = self.await_round(deadline.require("keeping the node's network"))
        if not ended:
            raise Unavailable("the node's network was not checked in the time of this call", "see the agent's log")
        if self.problem:
            raise Unavailable(f"the node's specs could not be checked: {self.problem}", "see the agent's log")
        return self.statuses

    def _round(self) -> float:
        self._now = self._now or self._was_urged
        if self._was_asked or self._now:
            self._next = 0.0  # what was asked for is due until a round has done it
        due = self._due()
        if due:
            self._now = True
        left_s = min(self._next, self._specs.next_due) - time.monotonic()
        if self._now or left_s <= 0:
            self._next = 0.0
            self._reconcile(now=self._now)
            self._next, self._now = time.monotonic() + self._tick_s, False
            return BEAT_S  # there may be something to ask for now
        return BEAT_S if due is not None else left_s

    def _reconcile(self, *, now: bool) -> None:
        specs, complete = self._desired()
        specs = [replace(each, plan=self._beating(each.plan)) for each in specs]
        statuses = self._specs.reconcile(specs, complete, now=now)
        self.statuses = statuses
        self._told(statuses)

    def _beating(self, plan: Plan) -> Plan:
        """The plan, which shows that the thread has come to it: a round of many specs may take long."""

        def steps(record: Record | None) -> tuple[Step, ...]:
            self.beat = time.monotonic()
            return plan(record)

        return steps
