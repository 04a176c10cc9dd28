"""The thread of the agent that keeps the node's own network as it is wished.

It pursues the wishes at its start, when it is asked to (an object, an address of a NIC or the switch has changed), when a wish
that could not be met is due again, and on the agent's tick. No error may end the thread; nothing of it is on the path of a verb.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.wishes import Standing, Wish, Wishes
from userspace_cni.base.log import say
from userspace_cni.base.threads import start

if TYPE_CHECKING:
    from userspace_cni.attachment.node import Node

BEAT_S: Final = 1.0


class Keeper:
    """The thread. `wished` reads all sources: the wishes, the sources that are complete, and what is refused before any look.

    `told` gets what became of each wish, whenever that has changed; it must not wait. `due` says whether something that cannot
    call `ask` (the switch, by its absence) wants a pursuit now.
    """

    def __init__(
        self,
        node: Node,
        wished: Callable[[], tuple[Sequence[Wish], frozenset[str], Sequence[Standing]]],
        tick_s: float,
        due: Callable[[], bool] = lambda: False,
        told: Callable[[Sequence[Standing]], None] = lambda _: None,
    ) -> None:
        self._wishes = Wishes(node)
        self._wished = wished
        self._tick_s = tick_s
        self._due = due
        self._told = told
        self._wake = threading.Condition()
        self._asked = 0
        self._stopping = False
        self._next = 0.0
        self._thread = threading.Thread(target=self._run, name="node-network", daemon=True)
        self.beat = time.monotonic()
        """When the thread's last round began; a pursuit may take long."""
        self.standings: tuple[Standing, ...] = ()
        """What became of each wish."""

    def start(self) -> None:
        """Start the thread, which begins with a pursuit. Raises Unavailable."""
        start(self._thread, "keeping the node's network")

    def stop(self) -> None:
        """Begin no further pursuit. What is applied stays: the next agent goes on from the records."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def ask(self) -> None:
        """Request a pursuit. Never waits."""
        with self._wake:
            self._asked += 1
            self._wake.notify_all()

    def _run(self) -> None:
        while not self._stopping:
            self.beat = now = time.monotonic()
            with self._wake:
                asked, self._asked = self._asked, 0
            if asked or now >= min(self._next, self._wishes.next_due) or self._guarded(self._due):
                self._guarded(lambda: self._pursue(now=asked > 0))  # noqa: B023 - called at once
                self._next = time.monotonic() + self._tick_s
            with self._wake:
                if not (self._stopping or self._asked):
                    self._wake.wait(BEAT_S)

    def _pursue(self, *, now: bool) -> bool:
        wishes, complete, refused = self._wished()
        standings = (*refused, *self._wishes.pursue(wishes, complete, now=now))
        if standings != self.standings:
            self.standings = standings
            self._told(standings)
        return True

    def _guarded(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 -- whatever it was, the next round may do better
            say("error", "a round of keeping the node's network failed", error=repr(error))
            return False
