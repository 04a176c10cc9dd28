"""The thread of the agent that keeps routes in pods as Routes ask for them.

It works when something has changed (an object, the runtime's cache, an ADD of ours) and when a pod is due again; in between it
sleeps. What it knows is kept in a file, from which the next agent goes on while the API server is away. No error may end it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable
from userspace_cni.base.loops import Loop
from userspace_cni.routes.passes import Passes
from userspace_cni.routes.places import NamespaceSources

APART_S: Final = 0.05
"""Seconds between two rounds that only changes ask for: a Deployment that is rolled out changes many objects."""
_NEVER: Final = float("inf")
"""A moment of CLOCK_MONOTONIC that does not come."""
_AGAIN_S: Final = 5.0
ROUND_S: Final = 300.0
"""A round that takes longer than this is stuck."""
_END_S: Final = 0.5
"""How long the end of a round is awaited: one that asks a container runtime may hang."""


class RouteKeeper(Loop):
    """The thread. `learn` has the passes go by what is known now, and says whether that is enough to act on; `told` is called
    after each round that acted, `ended` when there will be no other."""

    failing = "a round of keeping routes failed: "
    end_s = _END_S
    apart_s = APART_S
    back_off = BackOff(_AGAIN_S, _AGAIN_S)
    limit_s = ROUND_S
    late = "a round of keeping routes has not ended"

    def __init__(
        self,
        passes: Passes,
        places: NamespaceSources,
        learn: Callable[[], bool],
        told: Callable[[], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("routes", "keeps the routes of pods")
        self._passes = passes
        self._places = places
        self._learn = learn
        self._told = told
        self._on_end = ended
        self._everything = False
        self._sandboxes: set[str] = set()
        """Those to look at in the next round."""
        self.seconds = 0.0
        """How long the last round took."""
        self._reminded = _NEVER
        self.looks = 0
        self.rounds = 0
        """How many rounds have acted."""

    def remind(self, seconds: float) -> None:
        """Have a round after so many seconds at the latest. For what a round calls."""
        self._reminded = min(self._reminded, time.monotonic() + seconds)

    def ask_all(self) -> None:
        """Look at every pod soon. Never waits."""
        with self._wake:
            self._everything = True
            self.ask()

    def look(self, deadline: Deadline) -> None:
        """Look at every pod now, and wait for it. Raises Unavailable at the deadline."""
        with self._wake:
            self._everything = True
            ended = self.await_round(deadline.require("looking at the routes of pods"))
        if not ended:
            raise Unavailable("the pods' routes are not looked at within the time of this call", "see the agent's log")

    def look_at(self, sandbox: str, seconds: float) -> bool:
        """Check that sandbox now, because something in it has changed, and wait this long for it; whether that was enough."""
        with self._wake:
            self._sandboxes.add(sandbox)
            return self.await_round(seconds)

    def _end(self) -> None:
        self._on_end()

    def _round(self) -> float:
        self._reminded, self._served, began = _NEVER, False, time.monotonic()
        with self._wake:
            everything, sandboxes = self._everything, self._sandboxes
            self._everything, self._sandboxes = False, set()
        enough = False
        try:
            enough = self._learn()  # a missing thing asks for a round when it comes
            if enough:
                self._visit(everything=everything or self._passes.overdue, sandboxes=sandboxes)
                self._served = True
                self.rounds += 1
        finally:
            self.seconds = time.monotonic() - began
            if not self._served:
                with self._wake:  # what it was to look at is still to be looked at
                    self._everything |= everything
                    self._sandboxes |= sandboxes
        return min(self._passes.next_due if enough else _NEVER, self._reminded) - time.monotonic()

    def _visit(self, *, everything: bool, sandboxes: Collection[str]) -> None:
        located = self._places.locate(None if everything else self._passes.list_wanted())
        self.looks += self._passes.visit(located, sandboxes, everything=everything)
        self._told()
        if self._places.problems:
            self.remind(self._places.again_s)
